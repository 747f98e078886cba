"""GGUF metadata as a model's configuration."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.model_error import ModelError
from engine.models.config import ModelConfig, RopeScaling
from engine.weights.gguf_config import gguf_model_config
from engine.weights.gguf_file import GgufFile
from tests.builders.gguf_files import TinyModel, write_model


def config_of(tmp_path: Path, model: TinyModel, **writing: Any) -> ModelConfig:
    return gguf_model_config(GgufFile(write_model(tmp_path / "m.gguf", model, **writing)), "tiny")


def test_llama(tmp_path: Path) -> None:
    config = config_of(tmp_path, TinyModel())
    assert config == ModelConfig(
        family="llama", name="tiny", vocab_size=64, hidden_size=64, intermediate_size=96, num_layers=2,
        num_heads=4, num_kv_heads=2, head_dim=32, context_length=128, rms_norm_eps=config.rms_norm_eps,
        rope_theta=50_000.0, tie_word_embeddings=True, attention_scale=32**-0.5, bos_token_id=0,
        eos_token_ids=(1, 0),
    )  # fmt: skip
    assert config.rms_norm_eps == pytest.approx(1e-5)


def test_qwen2_has_biases_and_its_own_head(tmp_path: Path) -> None:
    config = config_of(tmp_path, TinyModel(architecture="qwen2", qkv_bias=True, tied=False))
    assert (config.family, config.qkv_bias, config.output_bias) == ("qwen2", True, False)
    assert not config.tie_word_embeddings


def test_qwen3(tmp_path: Path) -> None:
    config = config_of(tmp_path, TinyModel(architecture="qwen3"))
    assert (config.family, config.qkv_bias, config.hidden_activation) == ("qwen3", False, "silu")


def test_gemma3(tmp_path: Path) -> None:
    extra = {"attention.sliding_window": 16, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    config = config_of(tmp_path, TinyModel(architecture="gemma3", layers=7, extra=extra))
    assert config.sliding_layers == (True, True, True, True, True, False, True)
    assert (config.sliding_window, config.local_rope_theta) == (16, 10_000.0)
    assert config.rope_scaling == RopeScaling(kind="linear", factor=8.0)
    assert (config.hidden_activation, config.attention_scale) == ("gelu_tanh", 32**-0.5)


def test_gemma3_without_a_window_does_not_slide(tmp_path: Path) -> None:
    config = config_of(tmp_path, TinyModel(architecture="gemma3"))
    assert (config.sliding_window, config.sliding_layers) == (None, ())


def test_gemma3_27b_scales_by_its_width_per_head(tmp_path: Path) -> None:
    config = config_of(tmp_path, TinyModel(architecture="gemma3", layers=62), tensors=EMBEDDING)
    assert config.attention_scale == 16**-0.5


@pytest.mark.parametrize(
    ("pattern", "expected"), [(2, (True, False)), ([False, True], (False, True)), (1, (False, False))]
)
def test_sliding_pattern_in_the_file(tmp_path: Path, pattern: Any, expected: tuple[bool, ...]) -> None:
    extra = {"attention.sliding_window": 16, "attention.sliding_window_pattern": pattern}
    config = config_of(tmp_path, TinyModel(architecture="gemma3", extra=extra))
    assert config.sliding_layers == expected


def test_explicit_attention_scale_and_local_base(tmp_path: Path) -> None:
    extra = {"attention.scale": 0.25, "rope.freq_base_swa": 20_000.0}
    config = config_of(tmp_path, TinyModel(architecture="gemma3", extra=extra))
    assert (config.attention_scale, config.local_rope_theta) == (0.25, 20_000.0)


def test_rope_factors_are_llama3_scaling(tmp_path: Path) -> None:
    """Factors as convert_hf_to_gguf.py writes them; the oracle is transformers' llama3 rope."""
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    theirs = LlamaConfig(
        hidden_size=64, num_attention_heads=4, head_dim=32, max_position_embeddings=8192,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 50_000.0, "original_max_position_embeddings": 1024, **scaling
        },
    )  # fmt: skip
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](theirs, torch.device("cpu"))
    plain = 1.0 / (50_000.0 ** (torch.arange(0, 32, 2, dtype=torch.float32) / 32))
    factors = _converter_factors(plain.tolist(), original=1024, **scaling)

    config = config_of(tmp_path, TinyModel(), rope_factors=np.array(factors))

    assert config.rope_frequency_factors == tuple(np.float32(factor).item() for factor in factors)
    assert 1.0 in factors and 8.0 in factors and any(1 < factor < 8 for factor in factors)
    torch.testing.assert_close(plain / torch.tensor(config.rope_frequency_factors), expected)


def _converter_factors(
    frequencies: list[float], original: int, factor: float, low_freq_factor: float, high_freq_factor: float
) -> list[float]:
    factors = []
    for frequency in frequencies:
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high_freq_factor:
            factors.append(1.0)
        elif wavelength > original / low_freq_factor:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return factors


def test_end_tokens(tmp_path: Path) -> None:
    extra = {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 2**32 - 1}
    config = config_of(tmp_path, TinyModel(extra=extra))
    # eos, eot, then the control token; "</s>" (id 2) is no control token here, eom is out of range.
    assert config.eos_token_ids == (1, 5, 0)


def test_one_value_repeated_for_each_layer(tmp_path: Path) -> None:
    model = TinyModel(extra={"expert_count": 0, "rope.dimension_count": [32, 32]})
    assert config_of(tmp_path, model).head_dim == 32


EMBEDDING = {"model.embed_tokens.weight": np.ones((64, 64), dtype=np.float32)}
REFUSED: dict[str, tuple[TinyModel, str]] = {
    "architecture": (
        TinyModel(architecture="mamba"),
        "architecture 'mamba' is not supported; supported: llama, qwen2, qwen3, gemma3",
    ),
    "mixture of experts": (TinyModel(extra={"expert_count": 8}), "llama.expert_count = 8 is not supported"),
    "softcapping": (
        TinyModel(architecture="gemma3", extra={"final_logit_softcapping": 30.0}),
        "final_logit_softcapping = 30.0",
    ),
    "yarn": (TinyModel(extra={"rope.scaling.type": "yarn"}), "rope scaling 'yarn' is not supported"),
    "scaling factor": (TinyModel(extra={"rope.scaling.factor": -2.0}), "must be positive, not -2.0"),
    "split file": (TinyModel(extra={"split.count": 3}), "one part of a split model"),
    "partial rope": (TinyModel(extra={"rope.dimension_count": 16}), "differs from the head size 32"),
    "per-layer heads": (
        TinyModel(extra={"rope.dimension_count": [32, 16]}),
        "must be one int, not a list of 2",
    ),
    "text for a number": (TinyModel(extra={"rope.dimension_count": "many"}), "must be one int, not 'many'"),
    "no layers": (TinyModel(layers=0), "num_layers must be positive"),
    "too many layers": (TinyModel(layers=100_000), "num_layers 100000 is absurd"),
    "no heads": (TinyModel(heads=0), "num_heads must be positive"),
    "no KV heads": (TinyModel(kv_heads=0), "num_kv_heads must be positive"),
    "heads that don't share": (TinyModel(kv_heads=3), "4 heads can't share 3 KV heads"),
    "odd head size": (TinyModel(head_dim=31), "rope needs an even head_dim"),
    "short pattern": (
        TinyModel(
            architecture="gemma3",
            extra={"attention.sliding_window": 8, "attention.sliding_window_pattern": [True]},
        ),
        "1 layer types for 2 layers",
    ),
    "pattern of 0": (
        TinyModel(
            architecture="gemma3",
            extra={"attention.sliding_window": 8, "attention.sliding_window_pattern": 0},
        ),
        "no sliding pattern of period 0",
    ),
}


@pytest.mark.parametrize(("model", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(tmp_path: Path, model: TinyModel, reason: str) -> None:
    with pytest.raises(ModelError) as raised:
        config_of(tmp_path, model, tensors=EMBEDDING)
    assert reason in str(raised.value)
    assert "m.gguf" in str(raised.value)


@pytest.mark.parametrize(
    "factors", [np.ones(15), np.zeros(16), np.full(16, np.nan)], ids=["short", "zero", "nan"]
)
def test_bad_rope_factors(tmp_path: Path, factors: np.ndarray) -> None:
    with pytest.raises(ModelError, match=r"rope_freqs\.weight"):
        config_of(tmp_path, TinyModel(), rope_factors=factors)


def test_missing_key_and_missing_embedding(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", TinyModel())
    path.write_bytes(path.read_bytes().replace(b"llama.block_count", b"llama.block_cuont"))
    with pytest.raises(ModelError, match=r"metadata key llama.block_count is missing"):
        gguf_model_config(GgufFile(path), "tiny")
    with pytest.raises(ModelError, match=r"token_embd.weight is missing"):
        config_of(tmp_path, TinyModel(), tensors={"model.norm.weight": np.ones(64, dtype=np.float32)})

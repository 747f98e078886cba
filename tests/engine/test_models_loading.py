"""Loading: what is expected, what is refused before any data is read, progress, compute types."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.model_error import ModelError
from engine.model_loader import compute_dtype, load_model
from engine.models.config import ModelConfig
from engine.models.layers import DenseLinear, PackedLinear, make_linear, packing_helps
from engine.models.registry import expected_tensors, model_class
from engine.models.rotary import full_frequencies
from engine.weights.huggingface_checkpoint import HuggingFaceCheckpoint
from tests.builders.tiny_models import CASES, make_tiny_model


@pytest.fixture(scope="module", params=CASES)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    make_tiny_model(request.param, path)
    return path


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    make_tiny_model("llama", path)
    return path


class Recorded(HuggingFaceCheckpoint):
    """Notes what is loaded."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.loaded: list[str] = []
        self.changed_config: ModelConfig | None = None

    @property
    def config(self) -> ModelConfig:
        return self.changed_config or super().config

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        self.loaded.append(name)
        return super().load(name, dtype)


def test_every_tensor_of_the_checkpoint_is_expected_and_taken_once(directory: Path):
    checkpoint = Recorded(directory)
    expected = expected_tensors(checkpoint.config)
    assert expected == {name: checkpoint.shape(name) for name in checkpoint.names}
    load_model(checkpoint, torch.float32)
    assert sorted(checkpoint.loaded) == sorted(expected)


def test_parameters_are_counted(directory: Path):
    checkpoint = HuggingFaceCheckpoint(directory)
    total = sum(checkpoint.load(name, torch.float32).numel() for name in checkpoint.names)
    assert model_class(checkpoint.config).parameters(checkpoint.config) == total


def test_progress_counts_tensors_and_bytes(directory: Path):
    checkpoint = HuggingFaceCheckpoint(directory)
    calls: list[tuple[int, int, int, int]] = []
    load_model(checkpoint, torch.bfloat16, lambda *counts: calls.append(counts))
    tensors = len(checkpoint.names)
    nbytes = sum(checkpoint.nbytes(name) for name in checkpoint.names)
    assert calls[0] == (0, tensors, 0, nbytes)
    assert calls[-1] == (tensors, tensors, nbytes, nbytes)
    assert [done for done, *_ in calls] == list(range(tensors + 1))
    assert [done for *_, done, _ in calls] == sorted(done for *_, done, _ in calls)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 4}, r"tensors model\.layers\.3\..* missing"),
        ({"num_layers": 2}, r"tensors model\.layers\.2\..* unknown to family 'llama'"),
        ({"intermediate_size": 100}, r"mlp\.\w+_proj\.weight' has shape .*96"),
        ({"qkv_bias": True}, r"self_attn\.k_proj\.bias, .* missing"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused_before_data_is_read(
    llama: Path, change: dict[str, int], message: str
):
    checkpoint = Recorded(llama)
    checkpoint.changed_config = replace(checkpoint.config, **change)
    with pytest.raises(ModelError, match=message):
        load_model(checkpoint, torch.float32)
    assert checkpoint.loaded == []


def test_unknown_family_is_refused(llama: Path):
    config = replace(HuggingFaceCheckpoint(llama).config, family="mamba")
    known = "gemma3, llama, mistral, qwen2, qwen3"
    with pytest.raises(ModelError, match=f"model family 'mamba' is not supported; {known} are"):
        expected_tensors(config)


def test_compute_types(monkeypatch: pytest.MonkeyPatch):
    assert compute_dtype("float32") == torch.float32
    assert compute_dtype("bfloat16") == torch.bfloat16
    for capabilities, expected in (
        ({"avx2": True, "avx512_bf16": False}, torch.float32),
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"amx_bf16": True}, torch.bfloat16),
        ({"bf16": True}, torch.bfloat16),
        ({}, torch.float32),
    ):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=capabilities: found)
        assert compute_dtype("auto") == expected


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(960, 576), (307, 72), (64, 1536)])
def test_bfloat16_weights_multiply_any_number_of_rows(outputs: int, inputs: int, bias: bool):
    torch.manual_seed(outputs)
    weight = torch.randn(outputs, inputs).bfloat16()
    offset = torch.randn(outputs).bfloat16() if bias else None
    linear = make_linear(weight.clone(), offset)  # the clone is gone: a packed weight stands alone
    assert isinstance(linear, PackedLinear) == packing_helps(torch.bfloat16)
    for rows in (1, 2, 5, 16, 17, 64, 130):
        x = torch.randn(rows, 2 * inputs).bfloat16()[:, :inputs]
        exact = F.linear(x.double(), weight.double(), None if offset is None else offset.double())
        torch.testing.assert_close(linear(x).double(), exact, rtol=2**-8, atol=2**-9 * inputs**0.5)


def test_float32_is_never_packed():
    assert isinstance(make_linear(torch.randn(8, 8)), DenseLinear)


def test_frequency_factors_are_llama3_scaling_written_out(llama: Path):
    """As llama.cpp's converter computes ``rope_freqs.weight``: base over scaled frequencies."""
    config = HuggingFaceCheckpoint(llama).config
    oracle_config = AutoConfig.from_pretrained(llama)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](oracle_config)
    base = config.rope_theta ** -(torch.arange(0, config.head_dim, 2) / config.head_dim)
    written_out = replace(config, rope_scaling=None, rope_frequency_factors=tuple((base / scaled).tolist()))
    assert (base / scaled).max() > 7
    torch.testing.assert_close(full_frequencies(config), scaled)
    torch.testing.assert_close(full_frequencies(written_out), scaled)

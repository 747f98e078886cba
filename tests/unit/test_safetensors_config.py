"""config.json as a model's configuration; the oracle is transformers reading the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import (
    AutoConfig,
    Gemma3Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from engine.model_error import ModelError
from engine.models.config import ModelConfig, RopeScaling
from engine.weights.huggingface_config import huggingface_model_config

SMALL: dict[str, Any] = {
    "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 7,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
SAVED: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SMALL),
    "llama 3": LlamaConfig(
        **SMALL,
        head_dim=32,
        max_position_embeddings=131_072,
        tie_word_embeddings=True,
        rope_parameters={"rope_theta": 5e5, **LLAMA3},
    ),
    "llama with biases": LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True, bos_token_id=None),
    "llama linear": LlamaConfig(
        **SMALL, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    ),
    "mistral": MistralConfig(**SMALL),
    "mistral without window": MistralConfig(**SMALL, sliding_window=None, head_dim=32),
    "qwen2": Qwen2Config(**SMALL, tie_word_embeddings=True),
    "qwen2 sliding": Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=16, max_window_layers=3),
    "qwen2 never sliding": Qwen2Config(**SMALL, use_sliding_window=True, max_window_layers=7),
    "qwen3": Qwen3Config(**SMALL, attention_bias=True),
    "gemma3": Gemma3TextConfig(**SMALL, sliding_window=32, query_pre_attn_scalar=168),
    "gemma3 linear": Gemma3TextConfig(
        **SMALL,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
        },
    ),
    "gemma3 multimodal": Gemma3Config(text_config=Gemma3TextConfig(**SMALL).to_dict()),
}
OLD_FILES: dict[str, dict[str, Any]] = {
    "llama 2": {**SMALL, "model_type": "llama", "hidden_act": "silu", "rope_theta": 12_345.0},
    "llama 3.1": {
        **SMALL,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rope_theta": 500_000.0,
        "rope_scaling": LLAMA3,
        "max_position_embeddings": 131_072,
    },
    "linear by its oldest name": {
        **SMALL,
        "model_type": "llama",
        "rope_scaling": {"type": "linear", "factor": 2.0},
    },
    "llama3 without its original length": {
        **SMALL,
        "model_type": "llama",
        "max_position_embeddings": 4096,
        "rope_scaling": {key: value for key, value in LLAMA3.items() if not key.startswith("original")},
    },
    "mistral": {**SMALL, "model_type": "mistral", "sliding_window": 4096, "rope_theta": 1e6},
    "mistral silent about its window": {**SMALL, "model_type": "mistral"},
    "qwen2": {
        **SMALL,
        "model_type": "qwen2",
        "use_sliding_window": False,
        "sliding_window": 64,
        "max_window_layers": 2,
        "rope_theta": 1e6,
    },
    "qwen2 sliding": {
        **SMALL,
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 64,
        "max_window_layers": 2,
    },
    "qwen3": {**SMALL, "model_type": "qwen3", "rope_theta": 1e6, "rope_scaling": None},
    "gemma3": {
        **SMALL,
        "model_type": "gemma3_text",
        "rope_theta": 1e6,
        "rope_local_base_freq": 2e4,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window_pattern": 3,
    },
    "gemma3 with defaults left out": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10_240,
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
    },
}


def parsed(directory: Path, content: dict[str, Any] | None = None) -> ModelConfig:
    if content is not None:
        (directory / "config.json").write_text(json.dumps(content))
    return huggingface_model_config(directory, "tiny")


def assert_equals_transformers(ours: ModelConfig, directory: Path) -> None:
    whole = AutoConfig.from_pretrained(directory)
    theirs = whole.get_text_config()
    gemma = theirs.model_type == "gemma3_text"
    assert ours.family == theirs.model_type.removesuffix("_text")
    assert ours.vocab_size == theirs.vocab_size
    assert ours.hidden_size == theirs.hidden_size
    assert ours.intermediate_size == theirs.intermediate_size
    assert ours.num_layers == theirs.num_hidden_layers
    assert ours.num_heads == theirs.num_attention_heads
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == getattr(theirs, "head_dim", theirs.hidden_size // theirs.num_attention_heads)
    assert ours.context_length == theirs.max_position_embeddings
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.bos_token_id == theirs.bos_token_id
    assert ours.eos_token_ids == (() if theirs.eos_token_id is None else (theirs.eos_token_id,))
    attention_bias = getattr(theirs, "attention_bias", False)
    assert ours.qkv_bias == (attention_bias or theirs.model_type == "qwen2")
    assert ours.output_bias == attention_bias
    assert ours.mlp_bias == getattr(theirs, "mlp_bias", False)
    assert ours.hidden_activation == ("gelu_tanh" if gemma else "silu")
    scale_width = theirs.query_pre_attn_scalar if gemma else ours.head_dim
    assert ours.attention_scale == scale_width**-0.5
    all_slide = theirs.model_type == "mistral" and theirs.sliding_window
    default_types = [("sliding" if all_slide else "full") + "_attention"] * ours.num_layers
    sliding = tuple(
        kind == "sliding_attention" for kind in getattr(theirs, "layer_types", None) or default_types
    )
    assert ours.sliding_layers == (sliding if any(sliding) else ())
    assert ours.sliding_window == (theirs.sliding_window if any(sliding) else None)
    rope = theirs.rope_parameters["full_attention"] if gemma else theirs.rope_parameters
    assert ours.rope_theta == rope["rope_theta"]
    local = theirs.rope_parameters["sliding_attention"]["rope_theta"] if gemma else None
    assert ours.local_rope_theta == local
    assert ours.rope_scaling == scaling_of(rope)


def scaling_of(rope: dict[str, Any]) -> RopeScaling | None:
    if rope["rope_type"] == "default":
        return None
    if rope["rope_type"] == "linear":
        return RopeScaling(kind="linear", factor=rope["factor"])
    return RopeScaling(
        kind="llama3", factor=rope["factor"], low_freq_factor=rope["low_freq_factor"],
        high_freq_factor=rope["high_freq_factor"],
        original_context_length=rope["original_max_position_embeddings"],
    )  # fmt: skip


@pytest.mark.parametrize("config", SAVED.values(), ids=SAVED.keys())
def test_files_of_transformers_5(tmp_path: Path, config: PretrainedConfig) -> None:
    config.save_pretrained(tmp_path)
    assert_equals_transformers(parsed(tmp_path), tmp_path)


@pytest.mark.parametrize("content", OLD_FILES.values(), ids=OLD_FILES.keys())
def test_files_of_transformers_4(tmp_path: Path, content: dict[str, Any]) -> None:
    assert_equals_transformers(parsed(tmp_path, content), tmp_path)


def test_the_oracle_sees_every_kind_of_scaling_and_sliding(tmp_path: Path) -> None:
    kinds, patterns = set(), set()
    for content in OLD_FILES.values():
        config = parsed(tmp_path, content)
        kinds.add(config.rope_scaling.kind if config.rope_scaling else "default")
        patterns.add(config.sliding_layers[:3])
    assert kinds == {"default", "linear", "llama3"}
    assert patterns == {
        (), (True, True, True), (False, False, True), (True, True, False)
    }  # fmt: skip


LLAMA = {**SMALL, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": (
        {**LLAMA, "architectures": ["MixtralForCausalLM"]},
        "architecture 'MixtralForCausalLM' is not supported; supported: LlamaForCausalLM, MistralForCausalLM",
    ),
    "other head": ({**SMALL, "architectures": ["Qwen2ForSequenceClassification"]}, "is not supported"),
    "no architecture": (SMALL, "architecture 'none given'"),
    "yarn": (
        {**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
        "rope type 'yarn' is not supported",
    ),
    "dynamic": ({**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope type 'dynamic'"),
    "longrope": ({**LLAMA, "rope_parameters": {"rope_type": "longrope"}}, "rope type 'longrope'"),
    "llama3 without a factor": (
        {**LLAMA, "rope_scaling": {**LLAMA3, "low_freq_factor": None}},
        "needs a positive low_freq_factor, not None",
    ),
    "linear without a factor": ({**LLAMA, "rope_scaling": {"type": "linear"}}, "needs a positive factor"),
    "scaled sliding layers": (
        {
            **SMALL,
            "model_type": "gemma3_text",
            "rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}},
        },
        "rope type 'linear' of sliding layers",
    ),
    "partial rope": ({**LLAMA, "partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    "partial rope, new place": (
        {**LLAMA, "rope_parameters": {"partial_rotary_factor": 0.25}},
        "partial_rotary_factor = 0.25",
    ),
    "quantised": (
        {**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4}},
        "quantised by 'gptq' are not supported",
    ),
    "softcapping": (
        {**SMALL, "model_type": "gemma3_text", "final_logit_softcapping": 30.0},
        "final_logit_softcapping = 30.0",
    ),
    "two directions": (
        {**SMALL, "model_type": "gemma3_text", "use_bidirectional_attention": True},
        "use_bidirectional_attention",
    ),
    "activation": ({**LLAMA, "hidden_act": "relu"}, "activation 'relu' is not supported"),
    "layer type": (
        {**SMALL, "model_type": "gemma3_text", "layer_types": ["linear_attention"] * 7},
        "layer type 'linear_attention'",
    ),
    "too few layer types": (
        {**SMALL, "model_type": "gemma3_text", "layer_types": ["sliding_attention"]},
        "1 layer types for 7 layers",
    ),
    "window of 0": ({**SMALL, "model_type": "mistral", "sliding_window": 0}, "positive window, not 0"),
    "missing size": ({"model_type": "llama", "vocab_size": 8}, "missing required field `hidden_size`"),
    "wrong type": ({**LLAMA, "hidden_size": "64"}, "Expected `int`, got `str` - at `$.hidden_size`"),
    "no layers": ({**LLAMA, "num_hidden_layers": 0}, "num_layers must be positive"),
    "absurd layers": (
        {**SMALL, "model_type": "mistral", "num_hidden_layers": 2**40},
        "num_layers 1099511627776 is",
    ),
    "no heads": ({**LLAMA, "num_attention_heads": 0}, "num_heads must be positive"),
    "negative KV heads": ({**LLAMA, "num_key_value_heads": -1}, "num_kv_heads must be positive"),
}


@pytest.mark.parametrize(("content", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(tmp_path: Path, content: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError) as raised:
        parsed(tmp_path, content)
    assert reason in str(raised.value)
    assert str(tmp_path / "config.json") in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'"text"', b"[" * 100_000])
def test_files_that_are_no_config(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        parsed(tmp_path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json: can't be read: No such file"):
        parsed(tmp_path)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = sorted(
    {key for content in OLD_FILES.values() for key in content} | {"rope_parameters", "eos_token_id"}
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(base=st.sampled_from(list(OLD_FILES.values())), key=st.sampled_from(KEYS), value=anything)
def test_any_value_parses_or_is_refused(
    tmp_path: Path, base: dict[str, Any], key: str, value: object
) -> None:
    try:
        config = parsed(tmp_path, {**base, key: value})
    except ModelError as error:
        assert "config.json" in str(error)
    else:
        assert config.num_layers > 0


def end_ids(directory: Path, **files: object) -> tuple[int, ...]:
    for name, content in {"config": LLAMA, **files}.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return parsed(directory).eos_token_ids


def test_end_tokens_come_from_every_file(tmp_path: Path) -> None:
    ids = end_ids(
        tmp_path,
        generation_config={"eos_token_id": [7, 5]},
        config={**LLAMA, "eos_token_id": 5},
        tokenizer_config={
            "eos_token": {"content": "<end>", "lstrip": False},
            "added_tokens_decoder": {"3": {"content": "<end>"}, "4": {"content": "<other>"}},
        },
    )
    assert ids == (7, 5, 3)


def test_end_token_is_looked_up_in_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = {
        "added_tokens": [{"id": 9, "content": "<end>", "special": True}],
        "model": {"vocab": {"a": 0}},
    }
    assert end_ids(tmp_path, tokenizer_config={"eos_token": "<end>"}, tokenizer=tokenizer) == (9,)


def test_end_tokens_outside_the_vocabulary_are_left_out(tmp_path: Path) -> None:
    assert end_ids(tmp_path, generation_config={"eos_token_id": [1000, -1, 999]}) == (999,)


def test_no_end_token_at_all(tmp_path: Path) -> None:
    silent = {**LLAMA, "eos_token_id": None}
    assert end_ids(tmp_path, config=silent, tokenizer_config={"eos_token": None}) == ()
    assert end_ids(tmp_path, config=silent, tokenizer_config={"eos_token": "<nowhere>"}) == ()
    assert end_ids(tmp_path, config=LLAMA) == (2,)  # LlamaConfig's default


def test_end_tokens_of_a_multimodal_model(tmp_path: Path) -> None:
    text = Gemma3TextConfig(**SMALL, eos_token_id=3).to_dict()
    Gemma3Config(text_config=text, eos_token_id=[1, 106]).save_pretrained(tmp_path)
    assert parsed(tmp_path).eos_token_ids == (1, 106, 3)


def test_malformed_generation_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"generation_config\.json: Expected `int \| array \| null`"):
        end_ids(tmp_path, generation_config={"eos_token_id": "two"})

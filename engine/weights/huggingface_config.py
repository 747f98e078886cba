"""A Hugging Face config.json as a ModelConfig.

Reads what transformers 4 wrote (``rope_theta``, ``rope_scaling``, ``rope_local_base_freq``,
``sliding_window_pattern``) and what transformers 5 writes (``rope_parameters``, perhaps for each
layer type). Defaults are those of transformers' configuration classes. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from engine.model_error import ModelError
from engine.models.config import ModelConfig
from engine.weights.config_rules import check_config, valid_token_ids
from engine.weights.huggingface_rope import Rope, global_rope, local_rope_theta, rope_scaling_of
from engine.weights.huggingface_tokens import TokenIds, as_list, end_token_ids
from engine.weights.json_file import convert_json, read_json

_FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "LlamaForCausalLM": "llama",
        "MistralForCausalLM": "mistral",
        "Qwen2ForCausalLM": "qwen2",
        "Qwen3ForCausalLM": "qwen3",
        "Gemma3ForCausalLM": "gemma3",
        "Gemma3ForConditionalGeneration": "gemma3",
    }
)
_FAMILY_OF_MODEL_TYPE: Mapping[str, str] = MappingProxyType(
    {
        "llama": "llama",
        "mistral": "mistral",
        "qwen2": "qwen2",
        "qwen3": "qwen3",
        "gemma3_text": "gemma3",
        "gemma3": "gemma3",
    }
)
_DEFAULTS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "llama": {"max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2},
        "mistral": {
            "max_position_embeddings": 131_072,
            "num_key_value_heads": 8,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "sliding_window": 4096,
        },
        "qwen2": {"max_position_embeddings": 32_768, "num_key_value_heads": 32, "sliding_window": 4096},
        "qwen3": {
            "max_position_embeddings": 32_768,
            "num_key_value_heads": 32,
            "sliding_window": 4096,
            "head_dim": 128,
        },
        "gemma3": {
            "vocab_size": 262_208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131_072,
            "sliding_window": 4096,
            "tie_word_embeddings": True,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 256,
            "bos_token_id": 2,
            "eos_token_id": 1,
        },
    }
)
_ACTIVATIONS = MappingProxyType({"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"})
_LARGEST_LAYER_COUNT = 1024


class _Config(msgspec.Struct, kw_only=True):
    """The keys of config.json that decide a model's arithmetic."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    hidden_act: str | None = "silu"
    hidden_activation: str | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_theta: float = 10_000.0
    rope_local_base_freq: float | None = None
    rope_scaling: Rope | None = None
    rope_parameters: Rope | None = None
    partial_rotary_factor: float | None = None
    sliding_window: int | None = None
    use_sliding_window: bool = False
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    sliding_window_pattern: int | None = None
    query_pre_attn_scalar: float | None = None
    bos_token_id: int | None = None
    eos_token_id: TokenIds = None
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    use_bidirectional_attention: bool | None = None
    quantization_config: dict[str, Any] | None = None


class _Head(msgspec.Struct):
    """What tells which family a config.json is of."""

    architectures: list[str] | None = None
    model_type: str | None = None


def huggingface_model_config(directory: Path, name: str) -> ModelConfig:
    """The model's shape.

    Args:
        directory: holds config.json, perhaps generation_config.json and the tokenizer's files.
        name: what to call the model.

    Raises:
        ModelError: a file is missing or malformed, or the model uses what is not supported.
    """
    path = directory / "config.json"
    raw = read_json(path, dict[str, Any])
    family = _family(convert_json(path, raw, _Head), path)
    text = raw.get("text_config")
    if isinstance(text, dict):  # a multimodal model's language part, its defaults left out
        shared = ("quantization_config", "tie_word_embeddings")
        raw = {**{key: raw[key] for key in shared if key in raw}, **text}
    config = convert_json(path, {**_DEFAULTS[family], **raw}, _Config)
    _refuse_unsupported(config, path)
    # An id that no file gives is the class's own default; one that is null there is none.
    end_ids = end_token_ids(directory) or as_list(config.eos_token_id)
    return check_config(_build(config, family, name, path, end_ids), str(path))


def _build(config: _Config, family: str, name: str, path: Path, end_ids: list[int]) -> ModelConfig:
    heads = config.num_attention_heads
    head_dim = config.head_dim or (config.hidden_size // heads if heads > 0 else 0)
    scale_width = config.query_pre_attn_scalar or head_dim
    rope = global_rope(config.rope_scaling, config.rope_parameters)
    local_theta = local_rope_theta(config.rope_parameters, config.rope_local_base_freq, path)
    sliding = _sliding_layers(config, family, path)
    return ModelConfig(
        family=family,
        name=name,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=heads,
        num_kv_heads=heads if config.num_key_value_heads is None else config.num_key_value_heads,
        head_dim=head_dim,
        context_length=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_theta if rope.rope_theta is None else rope.rope_theta,
        rope_scaling=rope_scaling_of(rope, config.max_position_embeddings, path),
        local_rope_theta=local_theta if family == "gemma3" else None,
        sliding_window=config.sliding_window if any(sliding) else None,
        sliding_layers=sliding if any(sliding) else (),
        tie_word_embeddings=config.tie_word_embeddings,
        attention_scale=scale_width**-0.5 if scale_width > 0 else 0.0,
        hidden_activation=_activation(config, family, path),
        qkv_bias=config.attention_bias or family == "qwen2",
        output_bias=config.attention_bias and family != "qwen2",
        mlp_bias=config.mlp_bias,
        bos_token_id=next(iter(valid_token_ids([config.bos_token_id], config.vocab_size)), None),
        eos_token_ids=valid_token_ids(end_ids, config.vocab_size),
    )


def _family(head: _Head, path: Path) -> str:
    if head.architectures:
        family = _FAMILIES.get(head.architectures[0])
        found = head.architectures[0]
    else:
        family = _FAMILY_OF_MODEL_TYPE.get(head.model_type or "")
        found = head.model_type or "none given"
    if family is None:
        raise ModelError(
            f"{path}: architecture {found!r} is not supported; supported: {', '.join(_FAMILIES)}"
        )
    return family


def _refuse_unsupported(config: _Config, path: Path) -> None:
    if config.quantization_config is not None:
        method = config.quantization_config.get("quant_method", "unnamed")
        raise ModelError(
            f"{path}: weights quantised by {method!r} are not supported; "
            "take an unquantised model or a GGUF file"
        )
    for key in ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"):
        if getattr(config, key):
            raise ModelError(f"{path}: {key} = {getattr(config, key)} is not supported")
    rope = global_rope(config.rope_scaling, config.rope_parameters)
    for factor in (config.partial_rotary_factor, rope.partial_rotary_factor):
        if factor not in (None, 1.0):
            raise ModelError(f"{path}: partial_rotary_factor = {factor} is not supported")


def _sliding_layers(config: _Config, family: str, path: Path) -> tuple[bool, ...]:
    """For each layer, whether it slides; empty for a model without sliding attention."""
    layers = config.num_hidden_layers
    if family == "llama" or config.sliding_window is None or not 0 < layers <= _LARGEST_LAYER_COUNT:
        return ()
    if family == "mistral":
        return (True,) * layers
    if family != "gemma3" and not config.use_sliding_window:
        return ()
    if config.layer_types is not None:
        unknown = set(config.layer_types) - {"sliding_attention", "full_attention"}
        if unknown:
            raise ModelError(f"{path}: layer type {min(unknown)!r} is not supported")
        return tuple(kind == "sliding_attention" for kind in config.layer_types)
    if family == "gemma3":
        period = config.sliding_window_pattern or 6
        return tuple((layer + 1) % period != 0 for layer in range(layers))
    return tuple(layer >= config.max_window_layers for layer in range(layers))


def _activation(config: _Config, family: str, path: Path) -> str:
    named = config.hidden_activation if family == "gemma3" else config.hidden_act
    if named is None or named not in _ACTIVATIONS:
        raise ModelError(f"{path}: activation {named!r} is not supported; {', '.join(_ACTIVATIONS)} are")
    return _ACTIVATIONS[named]

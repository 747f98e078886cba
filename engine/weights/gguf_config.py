"""A GGUF file's metadata as a ModelConfig.

Keys and defaults as in llama.cpp (llama-model.cpp ``load_hparams``, llama-vocab.cpp for the
end-of-generation tokens); a key that would change the model's arithmetic is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeVar

from engine.model_error import ModelError
from engine.models.config import ModelConfig, RopeScaling
from engine.weights.config_rules import check_config, valid_token_ids
from engine.weights.gguf_file import GgufFile, MetadataValue
from engine.weights.gguf_names import FAMILIES

ROPE_FACTORS_TENSOR = "rope_freqs.weight"
"""Llama 3's divisors of the inverse frequencies, the same for every layer."""

_REFUSED_KEYS = (
    "expert_count", "attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "residual_scale",
    "embedding_scale", "attention.clamp_kqv", "attention.max_alibi_bias",
)  # fmt: skip
_END_TOKENS = frozenset(
    {
        "</s>", "<eos>", "<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>", "<|eot_id|>",
        "<|eom_id|>", "<end_of_turn>", "<|return|>", "<end_of_utterance>", "[EOT]", "[EOS]",
        "< EOT >", "_<EOT>",
    }
)  # fmt: skip
_CONTROL = 3
"""``tokenizer.ggml.token_type`` of a special token that is no text."""
_GEMMA_SLIDING_PATTERN = 6
_GEMMA_27B_LAYERS = 62

_T = TypeVar("_T")


class _Keys:
    """Typed access to the keys of the file's architecture."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._file = file
        self._architecture = architecture

    def get(self, key: str) -> MetadataValue | None:
        return self._file.metadata.get(f"{self._architecture}.{key}")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        if isinstance(value, list) and len(set(map(repr, value))) == 1:
            value = value[0]  # some converters repeat a value for each layer
        return self._wanted(int, key, default if value is None else value)

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        value = default if value is None else value
        return self._wanted(float, key, float(value) if type(value) is int else value)

    def text(self, key: str, default: str) -> str:
        value = self.get(key)
        return self._wanted(str, key, default if value is None else value)

    def _wanted(self, type_: type[_T], key: str, value: object) -> _T:
        name = f"{self._file.path}: metadata key {self._architecture}.{key}"
        if value is None:
            raise ModelError(f"{name} is missing")
        if type(value) is not type_:
            described = f"a list of {len(value)} values" if isinstance(value, list) else repr(value)
            raise ModelError(f"{name} must be one {type_.__name__}, not {described}")
        return value


def gguf_model_config(file: GgufFile, name: str) -> ModelConfig:
    """The model's shape.

    Args:
        file: the open file.
        name: what to call the model.

    Raises:
        ModelError: an unsupported architecture or feature, or missing or contradicting keys.
    """
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in FAMILIES:
        raise ModelError(
            f"{file.path}: architecture {architecture!r} is not supported; supported: {', '.join(FAMILIES)}"
        )
    if file.metadata.get("split.count") not in (None, 0, 1):
        raise ModelError(f"{file.path}: is one part of a split model; merge the parts with gguf-split")
    keys = _Keys(file, architecture)
    for key in _REFUSED_KEYS:
        if keys.get(key):
            raise ModelError(f"{file.path}: {architecture}.{key} = {keys.get(key)} is not supported")
    return check_config(_build(file, keys, FAMILIES[architecture], name), str(file.path))


def _build(file: GgufFile, keys: _Keys, family: str, name: str) -> ModelConfig:
    num_layers = keys.integer("block_count")
    num_heads = keys.integer("attention.head_count")
    hidden_size = keys.integer("embedding_length")
    head_dim = keys.integer("attention.key_length", hidden_size // num_heads if num_heads > 0 else 0)
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.integer(key, head_dim) != head_dim:
            raise ModelError(f"{file.path}: {key} {keys.get(key)} differs from the head size {head_dim}")
    vocab_size = _vocab_size(file)
    gemma = family == "gemma3"
    window = keys.integer("attention.sliding_window", 0) if gemma else 0
    return ModelConfig(
        family=family,
        name=name,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=keys.integer("feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=keys.integer("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        context_length=keys.integer("context_length"),
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope_theta=keys.number("rope.freq_base", 10_000.0),
        rope_scaling=_rope_scaling(file, keys),
        rope_frequency_factors=_rope_frequency_factors(file, head_dim),
        local_rope_theta=keys.number("rope.freq_base_swa", 10_000.0) if gemma else None,
        sliding_window=window or None,
        sliding_layers=_sliding_layers(file, keys, num_layers) if window else (),
        tie_word_embeddings="output.weight" not in file.tensors,
        attention_scale=_attention_scale(keys, family, num_layers, num_heads, hidden_size, head_dim),
        hidden_activation="gelu_tanh" if gemma else "silu",
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        bos_token_id=next(iter(valid_token_ids([_token_id(file, "bos")], vocab_size)), None),
        eos_token_ids=valid_token_ids(_end_token_ids(file), vocab_size),
    )


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{file.path}: tensor token_embd.weight is missing")
    return embedding.shape[0]


def _attention_scale(
    keys: _Keys, family: str, num_layers: int, num_heads: int, hidden_size: int, head_dim: int
) -> float:
    # Gemma 3 27B alone scales by hidden_size / num_heads, and older files don't say so.
    odd = family == "gemma3" and num_layers == _GEMMA_27B_LAYERS
    width = hidden_size / num_heads if odd and num_heads > 0 else head_dim
    default = width**-0.5 if width > 0 else 0.0
    return keys.number("attention.scale", 0.0) or default


def _rope_scaling(file: GgufFile, keys: _Keys) -> RopeScaling | None:
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0.0))
    kind = keys.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise ModelError(f"{file.path}: rope scaling {kind!r} is not supported; linear and llama3 are")
    if kind == "none" or factor in (0.0, 1.0):
        return None
    if not 0 < factor < math.inf:
        raise ModelError(f"{file.path}: rope scaling factor must be positive, not {factor}")
    return RopeScaling(kind="linear", factor=factor)


def _rope_frequency_factors(file: GgufFile, head_dim: int) -> tuple[float, ...] | None:
    tensor = file.tensors.get(ROPE_FACTORS_TENSOR)
    if tensor is None:
        return None
    if tensor.type.name != "F32" or tensor.shape != (head_dim // 2,):
        raise ModelError(
            f"{file.path}: {ROPE_FACTORS_TENSOR} must be F32 [{head_dim // 2}], "
            f"not {tensor.type.name} {list(tensor.shape)}"
        )
    factors = tuple(file.data(tensor).cast("f"))
    if not all(0 < factor < math.inf for factor in factors):
        raise ModelError(f"{file.path}: {ROPE_FACTORS_TENSOR} holds numbers that are not positive")
    return factors


def _sliding_layers(file: GgufFile, keys: _Keys, num_layers: int) -> tuple[bool, ...]:
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return tuple(bool(slides) for slides in pattern[:num_layers])
    period = keys.integer("attention.sliding_window_pattern", _GEMMA_SLIDING_PATTERN)
    if period < 1 or not 0 < num_layers <= 1024:
        raise ModelError(f"{file.path}: no sliding pattern of period {period} over {num_layers} layers")
    return tuple((layer + 1) % period != 0 for layer in range(num_layers))


def _token_id(file: GgufFile, which: str) -> int | None:
    value = file.metadata.get(f"tokenizer.ggml.{which}_token_id")
    return value if type(value) is int else None


def _end_token_ids(file: GgufFile) -> Iterator[int | None]:
    """The declared ids first, then control tokens known to end a turn, as llama.cpp finds them."""
    yield from (_token_id(file, which) for which in ("eos", "eot", "eom"))
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    types = file.metadata.get("tokenizer.ggml.token_type")
    if isinstance(tokens, list) and isinstance(types, list):
        for id_, (token, type_) in enumerate(zip(tokens, types, strict=False)):
            if type_ == _CONTROL and isinstance(token, str) and token in _END_TOKENS:
                yield id_

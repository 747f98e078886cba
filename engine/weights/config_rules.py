"""What must hold of every model's configuration before anything is built from it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import MappingProxyType

from engine.model_error import ModelError
from engine.models.config import ModelConfig

_LARGEST = MappingProxyType({"num_layers": 1024, "vocab_size": 1 << 24, "num_heads": 4096, "head_dim": 4096})
"""Far above any model; keeps a damaged file from claiming memory."""
_POSITIVE = (
    "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads",
    "head_dim", "context_length", "rms_norm_eps", "rope_theta", "attention_scale",
)  # fmt: skip


def check_config(config: ModelConfig, where: str) -> ModelConfig:
    """The configuration itself, if a model can be built from it.

    Args:
        config: as read from a file.
        where: the file, for the message.

    Raises:
        ModelError: a size is missing or absurd, or two sizes contradict each other.
    """
    for field in _POSITIVE:
        value = getattr(config, field)
        if not 0 < value < math.inf:
            raise ModelError(f"{where}: {field} must be positive, not {value}")
    for field, largest in _LARGEST.items():
        if getattr(config, field) > largest:
            raise ModelError(f"{where}: {field} {getattr(config, field)} is absurd (largest: {largest})")
    if config.num_heads % config.num_kv_heads:
        raise ModelError(f"{where}: {config.num_heads} heads can't share {config.num_kv_heads} KV heads")
    if config.head_dim % 2:
        raise ModelError(f"{where}: rope needs an even head_dim, not {config.head_dim}")
    if config.sliding_layers and len(config.sliding_layers) != config.num_layers:
        raise ModelError(f"{where}: {len(config.sliding_layers)} layer types for {config.num_layers} layers")
    if any(config.sliding_layers) and not (config.sliding_window or 0) > 0:
        raise ModelError(f"{where}: sliding layers need a positive window, not {config.sliding_window}")
    return config


def valid_token_ids(candidates: Iterable[int | None], vocab_size: int) -> tuple[int, ...]:
    """The ids within the vocabulary, each once, in order. Files use -1 and the like for "none"."""
    return tuple(dict.fromkeys(id_ for id_ in candidates if id_ is not None and 0 <= id_ < vocab_size))

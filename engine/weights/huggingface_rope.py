"""Rotary position parameters of a Hugging Face config.json, old and new."""

from __future__ import annotations

from pathlib import Path

import msgspec

from engine.model_error import ModelError
from engine.models.config import RopeScaling


class Rope(msgspec.Struct):
    """``rope_parameters`` (transformers 5, perhaps one for each layer type) or ``rope_scaling`` (4)."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    factor: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    original_max_position_embeddings: int | None = None
    partial_rotary_factor: float | None = None
    full_attention: Rope | None = None
    sliding_attention: Rope | None = None

    @property
    def kind(self) -> str:
        """``default`` unless the file names another."""
        return self.rope_type or self.type or "default"


def global_rope(rope_scaling: Rope | None, rope_parameters: Rope | None) -> Rope:
    """Rope of the full-attention layers. As in transformers, ``rope_scaling`` wins if both are there."""
    rope = rope_scaling or rope_parameters or Rope()
    return rope.full_attention or rope


def local_rope_theta(rope_parameters: Rope | None, default: float | None, path: Path) -> float | None:
    """Base of the sliding layers, ``default`` where the file gives none.

    Raises:
        ModelError: sliding layers are scaled.
    """
    sliding = rope_parameters.sliding_attention if rope_parameters else None
    if sliding is None:
        return default
    if sliding.kind != "default":
        raise ModelError(f"{path}: rope type {sliding.kind!r} of sliding layers is not supported")
    return default if sliding.rope_theta is None else sliding.rope_theta


def rope_scaling_of(rope: Rope, context_length: int, path: Path) -> RopeScaling | None:
    """The scaling, None for plain rope.

    Args:
        rope: of the full-attention layers.
        context_length: the original one for ``llama3`` where the file gives none, as in transformers.
        path: for messages.

    Raises:
        ModelError: the type is not supported or its numbers are missing or not positive.
    """
    match rope.kind:
        case "default":
            return None
        case "linear":
            return RopeScaling(kind="linear", factor=_positive(rope, "factor", path))
        case "llama3":
            return RopeScaling(
                kind="llama3",
                factor=_positive(rope, "factor", path),
                low_freq_factor=_positive(rope, "low_freq_factor", path),
                high_freq_factor=_positive(rope, "high_freq_factor", path),
                original_context_length=rope.original_max_position_embeddings or context_length,
            )
    raise ModelError(f"{path}: rope type {rope.kind!r} is not supported; default, linear and llama3 are")


def _positive(rope: Rope, key: str, path: Path) -> float:
    value: float | None = getattr(rope, key)
    if value is None or value <= 0:
        raise ModelError(f"{path}: rope type {rope.kind!r} needs a positive {key}, not {value}")
    return value

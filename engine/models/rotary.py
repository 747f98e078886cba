"""Rotary position embedding (arXiv 2104.09864), in Hugging Face's half-split form."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.models.config import ModelConfig, RopeScaling


@dataclass(frozen=True, slots=True)
class Rotation:
    """Angles of a batch's rows, computed once an iteration for all layers."""

    cos: Tensor
    """[rows, 1, head_dim]; both halves are equal."""
    signed_sin: Tensor
    """[rows, 1, head_dim]; the first half is negated, so that it goes with the swapped halves."""

    def apply_(self, heads: Tensor) -> None:
        """Rotate [rows, heads, head_dim] in place."""
        swapped = heads.roll(heads.shape[-1] // 2, -1)
        heads.mul_(self.cos).addcmul_(swapped, self.signed_sin)


@dataclass(frozen=True, slots=True)
class Rotations:
    """The rotation of each kind of layer; the same object where both kinds rotate alike."""

    full: Rotation
    sliding: Rotation


class Rotary:
    """Makes rotations for positions."""

    def __init__(self, inverse_frequencies: Tensor, dtype: torch.dtype) -> None:
        """``inverse_frequencies`` is float32, [head_dim / 2]; ``dtype`` is the compute type."""
        self._inverse_frequencies = inverse_frequencies
        self._dtype = dtype

    def rotation(self, positions: Tensor) -> Rotation:
        """For integer ``positions`` [rows]. Angles are float32, their cosines the compute type's."""
        angles = positions[:, None].float() * self._inverse_frequencies
        cos, sin = angles.cos(), angles.sin()
        return Rotation(
            cos=torch.cat((cos, cos), -1).to(self._dtype).unsqueeze(1),
            signed_sin=torch.cat((-sin, sin), -1).to(self._dtype).unsqueeze(1),
        )


def full_frequencies(config: ModelConfig) -> Tensor:
    """Inverse frequencies [head_dim / 2] of the full-attention layers, scaling applied."""
    frequencies = base_frequencies(config.rope_theta, config.head_dim)
    if config.rope_frequency_factors is not None:
        return frequencies / torch.tensor(config.rope_frequency_factors, dtype=torch.float32)
    if config.rope_scaling is not None:
        return _scaled(frequencies, config.rope_scaling)
    return frequencies


def sliding_frequencies(config: ModelConfig, full: Tensor) -> Tensor:
    """Those of the sliding layers: ``full`` itself unless they have a rope base of their own."""
    if config.local_rope_theta is None:
        return full
    return base_frequencies(config.local_rope_theta, config.head_dim)


def base_frequencies(theta: float, head_dim: int) -> Tensor:
    """Inverse frequencies [head_dim / 2] without scaling."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return 1.0 / theta**exponents


def _scaled(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    match scaling.kind:
        case "linear":
            return frequencies / scaling.factor
        case "llama3":
            return _llama3_scaled(frequencies, scaling)
    raise ValueError(f"unknown rope scaling {scaling.kind!r}")


def _llama3_scaled(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Divide long wavelengths by the factor, keep short ones, blend in between (Llama 3.1)."""
    rotations = scaling.original_context_length * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((rotations - scaling.low_freq_factor) / span).clamp(0, 1)
    return (1 - kept) * frequencies / scaling.factor + kept * frequencies

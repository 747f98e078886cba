"""What a decoder is made of, as plain values.

The torch modules compute with these parts, and the native step is built from the same ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.embedding import Embedding
from engine.models.layers import HeadNorm, LinearMap, RMSNorm


class LayerParts(NamedTuple):
    """One layer. Norm weights are what is multiplied by: an offset such as Gemma's 1 is in them."""

    input_norm: RMSNorm
    qkv: LinearMap
    """Query heads, key heads, value heads: [hidden] to [(num_heads + 2 * num_kv_heads) * head_dim]."""
    head_norm: HeadNorm | None
    """Over query and key heads, before they are rotated."""
    output: LinearMap
    """[num_heads * head_dim] to [hidden]."""
    attention_norm: RMSNorm | None
    """Over ``output``'s result, before it is added to the residual (Gemma)."""
    mlp_input_norm: RMSNorm
    gate_up: LinearMap
    """[hidden] to [2 * intermediate]: the gate's outputs, then the other half's."""
    down: LinearMap
    mlp_norm: RMSNorm | None
    """Over ``down``'s result, before it is added to the residual (Gemma)."""
    activation: str
    """Of the gate: ``silu`` or ``gelu_tanh``."""
    sliding: bool
    """Whether attention is over ``config.sliding_window`` tokens, and rotated by the sliding frequencies."""


class ModelParts(NamedTuple):
    """A whole decoder."""

    config: ModelConfig
    dtype: torch.dtype
    """The compute type of the torch path."""
    embedding: Embedding
    embedding_scale: float
    """Embeddings are multiplied by it; already rounded to ``dtype`` as in training."""
    layers: tuple[LayerParts, ...]
    final_norm: RMSNorm
    head: LinearMap
    """[hidden] to [vocab]; holds the same weight as ``embedding`` where the two are tied."""
    frequencies: Tensor
    """float32 [head_dim / 2]: radians a position, scaling applied, of the full-attention layers."""
    sliding_frequencies: Tensor
    """Of the sliding layers; the same tensor where both kinds rotate alike."""

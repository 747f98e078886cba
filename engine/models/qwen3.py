"""Qwen3, dense models (arXiv 2505.09388)."""

from __future__ import annotations

from engine.models.decoder import DecoderLayer, DecoderModel


class Qwen3Layer(DecoderLayer):
    """Queries and keys are normalised head by head; head_dim is not hidden / heads."""

    head_norms = True


class Qwen3Model(DecoderModel):
    """Qwen2 with head norms in the place of biases."""

    layer_class = Qwen3Layer

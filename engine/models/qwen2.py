"""Qwen2 and Qwen2.5 (arXiv 2407.10671)."""

from __future__ import annotations

from engine.models.decoder import DecoderModel


class Qwen2Model(DecoderModel):
    """Llama's layer with biases on queries, keys and values (``ModelConfig.qkv_bias``)."""

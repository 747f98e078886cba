"""Llama 1 to 3, and what was built to its plan (SmolLM2, TinyLlama, Yi)."""

from __future__ import annotations

from engine.models.decoder import DecoderModel


class LlamaModel(DecoderModel):
    """The shared decoder as it is: biases and rope scaling (Llama 3.1) are matters of configuration."""

"""Mistral (arXiv 2310.06825)."""

from __future__ import annotations

from engine.models.decoder import DecoderModel


class MistralModel(DecoderModel):
    """Llama's layer; the first version's attention slides, which the configuration says layer by layer."""

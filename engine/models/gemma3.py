"""Gemma 3, text part (arXiv 2503.19786)."""

from __future__ import annotations

import math

from engine.models.config import ModelConfig
from engine.models.decoder import DecoderLayer, DecoderModel, LayerWeights, Shapes
from engine.models.parts import LayerParts


class Gemma3Layer(DecoderLayer):
    """Norms before and after attention and MLP, all of them multiplying by 1 + weight; head norms.

    Most layers slide, with a rope base of their own.
    """

    head_norms = True
    norm_offset = 1.0

    @classmethod
    def make_parts(cls, config: ModelConfig, index: int, weights: LayerWeights) -> LayerParts:
        """As in the base class, each half's output normalised before it is added."""
        parts = super().make_parts(config, index, weights)
        # Hugging Face's "post" norm of the attention is Llama's name for the MLP's input norm.
        return parts._replace(
            attention_norm=parts.mlp_input_norm,
            mlp_input_norm=cls.norm(config, weights, "pre_feedforward_layernorm"),
            mlp_norm=cls.norm(config, weights, "post_feedforward_layernorm"),
        )

    @classmethod
    def shapes(cls, config: ModelConfig) -> Shapes:
        """Every tensor the layer takes, by name within the layer."""
        names = ("pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight")
        return super().shapes(config) | dict.fromkeys(names, (config.hidden_size,))


class Gemma3Model(DecoderModel):
    """Embeddings are scaled by sqrt(hidden), a number rounded to the compute type as in training."""

    layer_class = Gemma3Layer

    @classmethod
    def embedding_scale(cls, config: ModelConfig) -> float:
        """What embeddings are multiplied by."""
        return math.sqrt(config.hidden_size)

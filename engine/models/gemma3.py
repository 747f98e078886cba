"""Gemma 3, text part (arXiv 2503.19786)."""

from __future__ import annotations

import math

from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.decoder import DecoderLayer, DecoderModel, LayerWeights, Shapes


class Gemma3Layer(DecoderLayer):
    """Norms before and after attention and MLP, all of them multiplying by 1 + weight; head norms.

    Most layers slide, with a rope base of their own.
    """

    head_norms = True
    norm_offset = 1.0

    def __init__(self, config: ModelConfig, index: int, weights: LayerWeights) -> None:
        super().__init__(config, index, weights)
        self._pre_mlp_norm = self.norm(config, weights, "pre_feedforward_layernorm")
        self._post_mlp_norm = self.norm(config, weights, "post_feedforward_layernorm")

    @classmethod
    def shapes(cls, config: ModelConfig) -> Shapes:
        """Every tensor the layer takes, by name within the layer."""
        names = ("pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight")
        return super().shapes(config) | dict.fromkeys(names, (config.hidden_size,))

    def post_attention(self, attention_output: Tensor, residual: Tensor) -> Tensor:
        """As in the base class, each half's output normalised before it is added."""
        hidden = residual + self._post_attention_norm(self._output(attention_output))
        return hidden + self._post_mlp_norm(self._mlp(self._pre_mlp_norm(hidden)))


class Gemma3Model(DecoderModel):
    """Embeddings are scaled by sqrt(hidden), a number rounded to the compute type as in training."""

    layer_class = Gemma3Layer

    def embed(self, token_ids: Tensor) -> Tensor:
        """[rows] of token ids to [rows, hidden]."""
        embedded = super().embed(token_ids)
        return embedded * embedded.new_tensor(math.sqrt(self.config.hidden_size))

"""The decoder all families share: Llama's layer, and the model around a stack of layers.

A layer is two calls, ``pre_attention`` and ``post_attention``, with nothing between them but attention
itself: whoever runs the model decides which rows take which half when, and where their attention is
computed. A family overrides what it does differently.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.layers import GatedMLP, HeadNorm, LinearMap, RMSNorm, activation
from engine.models.matrices import Matrices, TensorSource, TorchMatrices
from engine.models.parts import LayerParts, ModelParts
from engine.models.rotary import Rotary, Rotation, Rotations, full_frequencies, sliding_frequencies

Shapes = dict[str, tuple[int, ...]]
"""Tensor shapes by Hugging Face name."""

_EMBEDDING = "model.embed_tokens.weight"
_FINAL_NORM = "model.norm.weight"
_HEAD = "lm_head.weight"


class AttentionInput(NamedTuple):
    """What ``pre_attention`` gives: attention's inputs and what ``post_attention`` needs besides."""

    q: Tensor
    """[rows, num_heads, head_dim], rotated."""
    kv: Tensor
    """[rows, 2, num_kv_heads, head_dim]: keys (rotated), then values, as a KV page has them."""
    residual: Tensor
    """[rows, hidden]."""


class LayerWeights:
    """One layer's tensors, by their names within the layer."""

    def __init__(self, source: TensorSource, matrices: Matrices, index: int, dtype: torch.dtype) -> None:
        """``index`` counts layers from 0; ``dtype`` is the compute type."""
        self._source = source
        self._matrices = matrices
        self._prefix = layer_prefix(index)
        self._dtype = dtype

    def norm(self, name: str) -> Tensor:
        """A norm's weight, in float32 because norms are computed so."""
        return self._source.load(f"{self._prefix}{name}.weight", torch.float32)

    def linear(self, *names: str, bias: bool) -> LinearMap:
        """One map that gives the outputs of all the named ones, in order."""
        biases = [self._source.load(f"{self._prefix}{name}.bias", self._dtype) for name in names if bias]
        weights = [f"{self._prefix}{name}.weight" for name in names]
        return self._matrices.linear(weights, torch.cat(biases) if bias else None)


class DecoderLayer:
    """Llama's layer: norm, attention, add; norm, gated MLP, add."""

    head_norms: ClassVar[bool] = False
    """Whether queries and keys are normalised head by head before they are rotated."""
    norm_offset: ClassVar[float] = 0.0
    """Added to the weight of every norm of the model."""

    def __init__(self, config: ModelConfig, index: int, weights: LayerWeights) -> None:
        self._num_heads = config.num_heads
        self._num_kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        self.parts = self.make_parts(config, index, weights)
        self._mlp = GatedMLP(self.parts.gate_up, self.parts.down, activation(self.parts.activation))

    @classmethod
    def make_parts(cls, config: ModelConfig, index: int, weights: LayerWeights) -> LayerParts:
        """Takes the layer's tensors, each once."""
        head_norm: HeadNorm | None = None
        if cls.head_norms:
            query, key = weights.norm("self_attn.q_norm"), weights.norm("self_attn.k_norm")
            head_norm = HeadNorm(query + cls.norm_offset, key + cls.norm_offset, config)
        projections = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        return LayerParts(
            input_norm=cls.norm(config, weights, "input_layernorm"),
            qkv=weights.linear(*projections, bias=config.qkv_bias),
            head_norm=head_norm,
            output=weights.linear("self_attn.o_proj", bias=config.output_bias),
            attention_norm=None,
            mlp_input_norm=cls.norm(config, weights, "post_attention_layernorm"),
            gate_up=weights.linear("mlp.gate_proj", "mlp.up_proj", bias=config.mlp_bias),
            down=weights.linear("mlp.down_proj", bias=config.mlp_bias),
            mlp_norm=None,
            activation=config.hidden_activation,
            sliding=bool(config.sliding_layers) and config.sliding_layers[index],
        )

    @classmethod
    def shapes(cls, config: ModelConfig) -> Shapes:
        """Every tensor the layer takes, by name within the layer."""
        hidden, inner = config.hidden_size, config.intermediate_size
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        shapes = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            **_linear_shapes("self_attn.q_proj", query, hidden, config.qkv_bias),
            **_linear_shapes("self_attn.k_proj", key, hidden, config.qkv_bias),
            **_linear_shapes("self_attn.v_proj", key, hidden, config.qkv_bias),
            **_linear_shapes("self_attn.o_proj", hidden, query, config.output_bias),
            **_linear_shapes("mlp.gate_proj", inner, hidden, config.mlp_bias),
            **_linear_shapes("mlp.up_proj", inner, hidden, config.mlp_bias),
            **_linear_shapes("mlp.down_proj", hidden, inner, config.mlp_bias),
        }
        if cls.head_norms:
            shapes |= {f"self_attn.{name}.weight": (config.head_dim,) for name in ("q_norm", "k_norm")}
        return shapes

    @classmethod
    def norm(cls, config: ModelConfig, weights: LayerWeights, name: str) -> RMSNorm:
        """The named norm over hidden states."""
        return RMSNorm(weights.norm(name) + cls.norm_offset, config.rms_norm_eps)

    def pre_attention(self, hidden: Tensor, rotations: Rotations) -> AttentionInput:
        """Norm, qkv, head norms, rotation.

        Args:
            hidden: [rows, hidden].
            rotations: of the rows' positions, from ``DecoderModel.rotations``.
        """
        heads, kv_heads = self._num_heads, self._num_kv_heads
        qkv = self.parts.qkv(self.parts.input_norm(hidden)).view(-1, heads + 2 * kv_heads, self._head_dim)
        qk = qkv[:, : heads + kv_heads]
        if self.parts.head_norm is not None:
            self.parts.head_norm.apply_(qk)
        self._rotation(rotations).apply_(qk)
        kv = qkv[:, heads:].view(-1, 2, kv_heads, self._head_dim)
        return AttentionInput(qkv[:, :heads], kv, hidden)

    def _rotation(self, rotations: Rotations) -> Rotation:
        return rotations.sliding if self.parts.sliding else rotations.full

    def post_attention(self, attention_output: Tensor, residual: Tensor) -> Tensor:
        """Output projection and MLP, each added to the residual.

        Args:
            attention_output: [rows, num_heads * head_dim].
            residual: [rows, hidden], from ``pre_attention`` of the same rows.

        Returns:
            The layer's output, [rows, hidden].
        """
        parts = self.parts
        attended = parts.output(attention_output)
        if parts.attention_norm is not None:
            attended = parts.attention_norm(attended)
        hidden = residual + attended
        transformed = self._mlp(parts.mlp_input_norm(hidden))
        return hidden + (transformed if parts.mlp_norm is None else parts.mlp_norm(transformed))


class DecoderModel:
    """Embedding, layers, last norm and head. Whoever runs it puts attention between the layers' halves."""

    layer_class: ClassVar[type[DecoderLayer]] = DecoderLayer

    def __init__(
        self,
        config: ModelConfig,
        source: TensorSource,
        dtype: torch.dtype,
        matrices: Matrices | None = None,
    ) -> None:
        """Takes every tensor of ``expected_tensors(config)``, once.

        Args:
            config: the model's shape.
            source: of norms and biases.
            dtype: the compute type.
            matrices: of all else; default: plain ones from ``source``.
        """
        self.config = config
        self.dtype = dtype
        matrices = matrices or TorchMatrices(source, dtype)
        embedding, head = matrices.vocabulary(_EMBEDDING, None if config.tie_word_embeddings else _HEAD)
        weights = (LayerWeights(source, matrices, index, dtype) for index in range(config.num_layers))
        self.layers = tuple(self.layer_class(config, index, each) for index, each in enumerate(weights))
        final_norm = source.load(_FINAL_NORM, torch.float32)
        frequencies = full_frequencies(config)
        self.parts = ModelParts(
            config=config,
            dtype=dtype,
            embedding=embedding,
            embedding_scale=torch.tensor(self.embedding_scale(config), dtype=dtype).item(),
            layers=tuple(layer.parts for layer in self.layers),
            final_norm=RMSNorm(final_norm + self.layer_class.norm_offset, config.rms_norm_eps),
            head=head,
            frequencies=frequencies,
            sliding_frequencies=sliding_frequencies(config, frequencies),
        )
        self._full_rotary = Rotary(frequencies, dtype)
        self._sliding_rotary = (
            self._full_rotary
            if self.parts.sliding_frequencies is frequencies
            else Rotary(self.parts.sliding_frequencies, dtype)
        )

    @classmethod
    def embedding_scale(cls, config: ModelConfig) -> float:
        """What embeddings are multiplied by."""
        return 1.0

    @classmethod
    def expected_tensors(cls, config: ModelConfig) -> Shapes:
        """Name and shape of every tensor the model takes from its checkpoint."""
        vocabulary = (config.vocab_size, config.hidden_size)
        shapes: Shapes = {_EMBEDDING: vocabulary, _FINAL_NORM: (config.hidden_size,)}
        if not config.tie_word_embeddings:
            shapes[_HEAD] = vocabulary
        layer = cls.layer_class.shapes(config)
        for index in range(config.num_layers):
            shapes |= {f"{layer_prefix(index)}{name}": shape for name, shape in layer.items()}
        return shapes

    @classmethod
    def parameters(cls, config: ModelConfig) -> int:
        """Number of weights."""
        return sum(math.prod(shape) for shape in cls.expected_tensors(config).values())

    def embed(self, token_ids: Tensor) -> Tensor:
        """[rows] of token ids to [rows, hidden]."""
        embedded = self.parts.embedding(token_ids)
        return embedded if self.parts.embedding_scale == 1.0 else embedded * self.parts.embedding_scale

    def rotations(self, positions: Tensor) -> Rotations:
        """For integer ``positions`` [rows]; made once an iteration, shared by all layers."""
        full = self._full_rotary.rotation(positions)
        alike = self._sliding_rotary is self._full_rotary
        return Rotations(full, full if alike else self._sliding_rotary.rotation(positions))

    def logits(self, hidden: Tensor) -> Tensor:
        """The last layer's output [rows, hidden] to float32 [rows, vocab]."""
        return self.parts.head(self.parts.final_norm(hidden)).float()


def layer_prefix(index: int) -> str:
    """What the names of a layer's tensors begin with."""
    return f"model.layers.{index}."


def _linear_shapes(name: str, outputs: int, inputs: int, bias: bool) -> Shapes:
    shapes: Shapes = {f"{name}.weight": (outputs, inputs)}
    if bias:
        shapes[f"{name}.bias"] = (outputs,)
    return shapes

"""The native step of a model: one call for all layers, built from the parts that torch computes with."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from torch import Tensor

from engine.kernels.loader import Kernels
from engine.models.embedding import Embedding
from engine.models.layers import HeadNorm, LinearMap, RMSNorm
from engine.models.native_linear import NativeEmbedding, NativeLinear
from engine.models.parts import LayerParts, ModelParts

if TYPE_CHECKING:
    from engine.kernels import _native

_ACTIVATIONS: Mapping[str, int] = MappingProxyType({"silu": 0, "gelu_tanh": 1})
"""The library's numbers for them."""


class NotNativeError(Exception):
    """The step can't compute with a part of the model; the message says with which one."""


def native_step(parts: ModelParts, kernels: Kernels) -> _native.Step:
    """The step of a model whose matrices are native.

    Raises:
        NotNativeError: one of them is not, or the step doesn't know what the model does.
    """
    from engine.kernels import _native

    config = parts.config
    full, sliding = parts.frequencies, parts.sliding_frequencies
    if parts.layers[0].activation not in _ACTIVATIONS:
        raise NotNativeError(f"there is no native {parts.layers[0].activation}")
    return _native.Step(
        kernels.pool,
        kernels.instruction_set,
        hidden=config.hidden_size,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        dim=config.head_dim,
        inner=config.intermediate_size,
        eps=config.rms_norm_eps,
        activation=_ACTIVATIONS[parts.layers[0].activation],
        embedding=_embedding(parts.embedding),
        embedding_scale=parts.embedding_scale,
        layers=[_layer(layer) for layer in parts.layers],
        final_norm=_norm(parts.final_norm),
        head=_matrix(parts.head, "head"),
        full_frequencies=full.tolist(),
        sliding_frequencies=[] if sliding is full else sliding.tolist(),
    )


def _layer(parts: LayerParts) -> _native.StepLayer:
    from engine.kernels import _native

    query_norm, key_norm = _head_norms(parts.head_norm)
    return _native.StepLayer(
        qkv=_linear(parts.qkv, "qkv"),
        output=_linear(parts.output, "output"),
        gate_up=_linear(parts.gate_up, "gate and up"),
        down=_linear(parts.down, "down"),
        input_norm=_norm(parts.input_norm),
        query_norm=query_norm,
        key_norm=key_norm,
        attention_norm=_norm(parts.attention_norm),
        mlp_input_norm=_norm(parts.mlp_input_norm),
        mlp_norm=_norm(parts.mlp_norm),
        sliding=parts.sliding,
    )


def _linear(linear: LinearMap, name: str) -> _native.StepLinear:
    from engine.kernels import _native

    matrix = _matrix(linear, name)
    bias = linear.bias if isinstance(linear, NativeLinear) else None
    return _native.StepLinear(matrix, _floats(bias))


def _matrix(linear: LinearMap, name: str) -> _native.Matrix:
    if not isinstance(linear, NativeLinear):
        raise NotNativeError(f"the {name} weights are torch's ({type(linear).__name__})")
    return linear.matrix


def _embedding(embedding: Embedding) -> _native.Matrix:
    if not isinstance(embedding, NativeEmbedding):
        raise NotNativeError(f"the embedding is torch's ({type(embedding).__name__})")
    return embedding.matrix


def _norm(norm: RMSNorm | None) -> list[float]:
    return _floats(None if norm is None else norm.weight)


def _head_norms(norm: HeadNorm | None) -> tuple[list[float], list[float]]:
    """One head's weight of queries, and one of keys: all heads of a kind have the same."""
    return ([], []) if norm is None else (norm.weight[0].tolist(), norm.weight[-1].tolist())


def _floats(values: Tensor | None) -> list[float]:
    floats: list[float] = [] if values is None else values.float().tolist()
    return floats

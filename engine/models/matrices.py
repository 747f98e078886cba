"""How a model's matrices are kept: what a decoder asks for its linear maps and its embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.models.embedding import DenseEmbedding, Embedding
from engine.models.layers import LinearMap, make_linear


class TensorSource(Protocol):
    """Where a model takes its tensors from; ``Checkpoint`` is one."""

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        """The tensor of this Hugging Face name."""


class Matrices(Protocol):
    """Makes linear maps of a checkpoint's matrices, each taken once."""

    def linear(self, weights: Sequence[str], bias: Tensor | None) -> LinearMap:
        """One map that gives the outputs of all the named weights, in order.

        Args:
            weights: names of [out, in] tensors.
            bias: over all outputs, in the compute type.
        """

    def vocabulary(self, embedding: str, head: str | None) -> tuple[Embedding, LinearMap]:
        """The embedding and the map to logits; both hold one weight where ``head`` is None."""


class TorchMatrices:
    """Plain tensors of the compute type, multiplied by torch."""

    def __init__(self, source: TensorSource, dtype: torch.dtype) -> None:
        """``dtype`` is the compute type."""
        self._source = source
        self._dtype = dtype

    def linear(self, weights: Sequence[str], bias: Tensor | None) -> LinearMap:
        """See ``Matrices``."""
        loaded = [self._source.load(name, self._dtype) for name in weights]
        return make_linear(loaded[0] if len(loaded) == 1 else torch.cat(loaded), bias)

    def vocabulary(self, embedding: str, head: str | None) -> tuple[Embedding, LinearMap]:
        """See ``Matrices``."""
        rows = self._source.load(embedding, self._dtype)
        return DenseEmbedding(rows), make_linear(
            rows if head is None else self._source.load(head, self._dtype)
        )

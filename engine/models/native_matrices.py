"""A checkpoint's matrices for the native kernels: packed as the file has them, or quantised when loaded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from engine.kernels.loader import Kernels
from engine.kernels.matrices import (
    BLOCK_INPUTS,
    FLOATS,
    PACKED_TYPES,
    QUANTIZED_AS,
    MatrixPart,
    Workspace,
    make_matrix,
)
from engine.models.embedding import Embedding
from engine.models.layers import LinearMap, dtype_name
from engine.models.native_linear import NativeEmbedding, NativeLinear
from engine.stored_tensor import FLOAT_TYPES, StoredTensor

Quantization = Literal["int8", "int4"] | None
"""What float weights become, if anything."""


class StoredSource(Protocol):
    """Where matrices are taken from; ``Checkpoint`` is one."""

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        """The tensor of this Hugging Face name."""

    def stored(self, name: str) -> StoredTensor | None:
        """The same as its file has it, if its numbers can be used so."""


class NativeMatrices:
    """See ``engine.models.matrices.Matrices``. Each is laid out once, straight from the mapped file."""

    def __init__(
        self,
        source: StoredSource,
        dtype: torch.dtype,
        kernels: Kernels,
        quantize_to: Quantization = None,
        *,
        packed: bool = True,
    ) -> None:
        """Matrices of ``source``.

        Args:
            source: a checkpoint.
            dtype: the compute type, which float weights that are not quantised become.
            kernels: that multiply.
            quantize_to: what float weights become instead.
            packed: whether quantised weights stay as the file has them; else they become the compute type.
        """
        self._source = source
        self._dtype = dtype
        self._kernels = kernels
        self._quantize_to = quantize_to
        self._packed = packed
        self._workspace = Workspace(kernels.instruction_set)

    def linear(self, weights: Sequence[str], bias: Tensor | None) -> LinearMap:
        """See ``Matrices``."""
        return self._linear([self._part(name, self._quantize_to) for name in weights], bias)

    def vocabulary(self, embedding: str, head: str | None) -> tuple[Embedding, LinearMap]:
        """See ``Matrices``. Never less than int8: logits suffer most, and llama.cpp's files do so too."""
        quantize_to: Quantization = None if self._quantize_to is None else "int8"
        rows = self._part(embedding, quantize_to)
        logits = self._linear([rows if head is None else self._part(head, quantize_to)], None)
        matrix = logits.matrix if head is None else make_matrix([rows], self._kernels)
        return NativeEmbedding(matrix, self._dtype, _elements([rows])), logits

    def _linear(self, parts: Sequence[MatrixPart], bias: Tensor | None) -> NativeLinear:
        matrix = make_matrix(parts, self._kernels)
        bias = None if bias is None else bias.float()
        return NativeLinear(matrix, bias, self._kernels.pool, self._workspace, _elements(parts))

    def _part(self, name: str, quantize_to: Quantization) -> MatrixPart:
        stored = self._source.stored(name)
        if self._packed and stored is not None and stored.type_name in PACKED_TYPES:
            return MatrixPart(stored, stored.type_name)
        if quantize_to is not None:
            exact = self._floats(name, stored, "F32")
            whole = exact.shape[1] % BLOCK_INPUTS == 0
            return MatrixPart(exact, QUANTIZED_AS[quantize_to] if whole else exact.type_name)
        # In float32 all float types are exact as they are, and narrow ones are read faster.
        as_it_is = stored is not None and self._dtype == torch.float32 and stored.type_name in FLOAT_TYPES
        floats = stored if stored and as_it_is else self._floats(name, stored, FLOATS[self._dtype])
        return MatrixPart(floats, floats.type_name)

    def _floats(self, name: str, stored: StoredTensor | None, type_name: str) -> StoredTensor:
        """The file's own numbers if they are of this type, else converted ones."""
        if stored is not None and stored.type_name == type_name:
            return stored
        loaded = self._source.load(name, FLOAT_TYPES[type_name])
        return StoredTensor(type_name, tuple(loaded.shape), loaded.data_ptr(), loaded, None)


def _elements(parts: Sequence[MatrixPart]) -> Counter[str]:
    elements: Counter[str] = Counter()
    for part in parts:
        dtype = FLOAT_TYPES.get(part.format)
        name = part.format if dtype is None else dtype_name(dtype)
        elements[name] += math.prod(part.source.shape)
    return elements

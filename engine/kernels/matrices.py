"""Matrices for the native kernels, laid out from a checkpoint's bytes."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from engine.kernels.loader import Kernels
from engine.stored_tensor import FLOAT_TYPES, StoredTensor

if TYPE_CHECKING:
    from engine.kernels import _native

PACKED_TYPES = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"})
"""GGUF's types that stay packed."""
FLOATS: Mapping[torch.dtype, str] = MappingProxyType({dtype: name for name, dtype in FLOAT_TYPES.items()})
"""GGUF's names of the float types, which are multiplied as they are."""
BLOCK_INPUTS = 32
"""What floats are quantised to comes in whole blocks of so many inputs."""
QUANTIZED_AS: Mapping[Literal["int8", "int4"], str] = MappingProxyType({"int8": "Q8_0", "int4": "Q4_1"})
"""The format that float weights are quantised to."""


_NUMBERS: Mapping[str, int] = MappingProxyType(
    {
        "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13,
        "Q6_K": 14, "BF16": 30,
    }
)  # fmt: skip
"""The library's numbers of formats, which are GGUF's."""
_QUANTIZED_BYTES: Mapping[str, int] = MappingProxyType({"Q8_0": 34, "Q4_1": 20})
"""Of a block."""


class MatrixPart(NamedTuple):
    """Some outputs of a matrix."""

    source: StoredTensor
    """[out, in]."""
    format: str
    """GGUF's name of what it is kept as: the source's own type, or one that floats are quantised to."""


class Workspace(threading.local):
    """Memory for activations as kernels want them: each thread's own, for all matrices it multiplies."""

    def __init__(self, instruction_set: str) -> None:
        """Called anew in every thread."""
        from engine.kernels import _native

        self.rows = _native.PreparedRows(instruction_set)


def make_matrix(parts: Sequence[MatrixPart], kernels: Kernels) -> _native.Matrix:
    """One matrix with the outputs of all parts, in order. Every source is read once and not kept.

    Raises:
        ValueError: the kernels don't know a part's shape or format.
    """
    from engine.kernels import _native

    ready = [_as_kept(part) for part in parts]
    sources = [(_NUMBERS[each.type_name], each.shape[0], each.address, _order(each)) for each in ready]
    return _native.Matrix(parts[0].source.shape[1], sources, kernels.instruction_set, kernels.pool)


def _as_kept(part: MatrixPart) -> StoredTensor:
    """The source itself, or its floats rounded to the part's blocks."""
    from engine.kernels import _native

    source = part.source
    if part.format == source.type_name:
        return source
    count = math.prod(source.shape)
    blocks = torch.empty(count // BLOCK_INPUTS * _QUANTIZED_BYTES[part.format], dtype=torch.uint8)
    _native.quantise_weights(_NUMBERS[part.format], source.address, count, blocks.data_ptr())
    return StoredTensor(part.format, source.shape, blocks.data_ptr(), blocks, source.row_order)


def _order(source: StoredTensor) -> int:
    return 0 if source.row_order is None else source.row_order.data_ptr()

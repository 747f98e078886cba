"""Weights of every format, their products in native code, and what these have to be: in float64."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from engine.kernels import _native

INSTRUCTION_SETS = _native.instruction_sets()
FLOATS = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)
BLOCKS = tuple(GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"))
SUPER_BLOCKS = tuple(GGMLQuantizationType[name] for name in ("Q4_K", "Q5_K", "Q6_K"))
FORMATS = (*FLOATS, *BLOCKS, *SUPER_BLOCKS)
EPSILON = 2.0**-24
"""Half a unit in the last place of a float32, relative."""
HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,)} | {
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Where a block has its float16 numbers."""

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def address(array: NDArray) -> int:
    return array.__array_interface__["data"][0]


def random_weights(format: GGMLQuantizationType, outputs: int, inputs: int, seed: int = 0) -> Bytes:
    """[outputs, bytes of a row]: any bits, but scales that are finite."""
    random = np.random.default_rng(seed)
    elements, size = GGML_QUANT_SIZES[format]
    if format in FLOATS:
        values = random.standard_normal((outputs, inputs), np.float32)
        if format == GGMLQuantizationType.BF16:
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype(np.float16 if format == GGMLQuantizationType.F16 else np.float32).view(np.uint8)
    blocks = random.integers(0, 256, (outputs * inputs // elements, size), np.uint8)
    for place in HALVES[format.name]:
        scales = random.normal(0, 0.01, len(blocks)).astype(np.float16)
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(outputs, -1)


def as_floats(format: GGMLQuantizationType, weights: Bytes) -> Floats:
    """[outputs, inputs], by gguf's own routines."""
    return dequantize(weights, format)


@dataclass
class Dense:
    """A matrix of one or several sources with a pool."""

    inputs: int
    sources: list[tuple[GGMLQuantizationType, Bytes]]
    instruction_set: str = "auto"
    threads: int = 1
    order: NDArray[np.int64] | None = None
    matrix: _native.Matrix = field(init=False)

    def __post_init__(self) -> None:
        order = 0 if self.order is None else address(self.order)
        sources = [(int(format), len(data), address(data), order) for format, data in self.sources]
        self.pool = _native.ThreadPool(self.threads, [], 20)
        self.matrix = _native.Matrix(self.inputs, sources, self.instruction_set, self.pool)
        self.prepared = _native.PreparedRows(self.instruction_set)

    def multiply(self, x: Floats, bias: Floats | None = None, padding: int = 0) -> Floats:
        """[rows, inputs] to [rows, outputs], whose rows lie ``padding`` numbers further apart."""
        out = np.full((len(x), self.matrix.outputs + padding), 77, np.float32)
        self.matrix.apply(
            self.prepared, address(x), len(x), x.strides[0] // 4, address(out), out.shape[1],
            0 if bias is None else address(bias), self.pool,
        )  # fmt: skip
        assert (out[:, self.matrix.outputs :] == 77).all()
        return out[:, : self.matrix.outputs]

    def rounded(self, rows: int) -> Floats:
        """What the last product took the rows for."""
        out = np.empty((rows, self.inputs), np.float32)
        for row in range(rows):
            self.prepared.dequantise(row, address(out[row]))
        return out

    def lookup(self, ids: list[int]) -> Floats:
        out = np.empty((len(ids), self.inputs), np.float32)
        self.matrix.rows(address(np.array(ids, np.int64)), len(ids), address(out))
        return out


def activations(rows: int, inputs: int, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).standard_normal((rows, inputs), np.float32)


def rounding(x: Floats) -> NDArray[np.float64]:
    """Half a step of each activation: [rows, inputs]."""
    blocks = np.abs(x.astype(np.float64)).reshape(len(x), -1, 32)
    return np.repeat(blocks.max(axis=2) / 127 / 2, 32, axis=1)

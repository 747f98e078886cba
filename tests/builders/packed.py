"""Quantised blocks of every type, and what a product with them may be off by."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from torch import Tensor

from engine.stored_tensor import StoredTensor
from engine.weights.dequantize import dequantized
from engine.weights.gguf_types import GGUF_TYPES

TYPES = {type_.name: type_ for type_ in GGUF_TYPES.values()}
_K_SCALES = {"Q4_K": (0, 4), "Q5_K": (0, 4), "Q6_K": (208, 210)}
"""Where the float16 scales lie in a block (ggml-common.h): gguf can't quantise to these types."""


def blocks(type_name: str, outputs: int, inputs: int, seed: int = 0) -> np.ndarray:
    """Valid rows of blocks, uint8 [outputs, bytes]: numbers of about 1 / sqrt(inputs)."""
    rng = np.random.default_rng(seed)
    if type_name not in _K_SCALES:
        values = rng.standard_normal((outputs, inputs), dtype=np.float32) / np.sqrt(inputs)
        rows = quantize(np.ascontiguousarray(values, dtype=np.float32), GGMLQuantizationType[type_name])
        return rows.view(np.uint8).reshape(outputs, -1)
    type_ = TYPES[type_name]
    count = outputs * inputs // type_.block_elements
    data = rng.integers(0, 256, (count, type_.block_bytes), dtype=np.uint8)
    start, end = _K_SCALES[type_name]
    scales = rng.uniform(-1e-3, 1e-3, (count, (end - start) // 2)).astype(np.float16)
    data[:, start:end] = scales.view(np.uint8)
    return data.reshape(outputs, -1)


def stored(type_name: str, data: np.ndarray, inputs: int, row_order: Tensor | None = None) -> StoredTensor:
    """Blocks as a checkpoint gives them."""
    return StoredTensor(type_name, (len(data), inputs), data.ctypes.data, data, row_order)


def numbers(type_name: str, data: np.ndarray, inputs: int) -> Tensor:
    """What the blocks stand for, float32 [outputs, inputs]."""
    return dequantized(memoryview(data.tobytes()), TYPES[type_name], (len(data), inputs), torch.float32)


def stored_floats(values: Tensor) -> StoredTensor:
    """A float tensor as a checkpoint gives it."""
    name = {torch.float32: "F32", torch.bfloat16: "BF16"}[values.dtype]
    return StoredTensor(name, tuple(values.shape), values.data_ptr(), values, None)


def activation_error(x: Tensor, weight: Tensor) -> Tensor:
    """Most that int8 activations, rounded in blocks of 32, change of x W^T, and float32 sums besides."""
    padded = F.pad(x.double().abs(), (0, -x.shape[1] % 32)).unflatten(1, (-1, 32))
    steps = (padded.amax(-1) / 127).repeat_interleave(32, 1)[:, : x.shape[1]]
    rounded = 0.5 * steps @ weight.double().abs().T
    return rounded * 1.01 + 1e-5 * (x.double().abs() @ weight.double().abs().T) + 1e-6

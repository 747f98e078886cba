"""Dequantisation in chunks against gguf's own, for every supported type."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from engine.weights import dequantize as module
from engine.weights.dequantize import DEQUANTIZABLE, dequantized
from engine.weights.gguf_types import GGUF_TYPES

TYPES = {type_.name: type_ for type_ in GGUF_TYPES.values()}
K_SCALES = {"Q4_K": [(0, 4)], "Q5_K": [(0, 4)], "Q6_K": [(208, 210)]}
"""Where the float16 scales lie in a block (ggml-common.h)."""


def blocks_of(name: str, rows: int, columns: int) -> np.ndarray:
    """Rows of valid blocks: quantised where gguf can, random bytes with finite scales for K types."""
    rng = np.random.default_rng(7)
    type_ = TYPES[name]
    if name not in K_SCALES:
        values = rng.standard_normal((rows, columns), dtype=np.float32)
        return quantize(values, GGMLQuantizationType[name]).reshape(rows, -1).view(np.uint8)
    count = rows * columns // type_.block_elements
    data = rng.integers(0, 256, (count, type_.block_bytes), dtype=np.uint8)
    for start, end in K_SCALES[name]:
        scales = rng.uniform(-1, 1, (count, (end - start) // 2)).astype(np.float16)
        data[:, start:end] = scales.view(np.uint8)
    return data.reshape(rows, -1)


@pytest.mark.parametrize("name", sorted(DEQUANTIZABLE))
@pytest.mark.parametrize("chunk", [1 << 17, 512])
def test_equals_gguf(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_ELEMENTS", chunk)
    rows, columns = 7, 768  # with chunks of 512: ten whole ones and half a one
    data = blocks_of(name, rows, columns)
    expected = torch.from_numpy(dequantize(data, GGMLQuantizationType[name]).copy())

    exact = dequantized(memoryview(data.tobytes()), TYPES[name], (rows, columns), torch.float32)
    narrow = dequantized(memoryview(data.tobytes()), TYPES[name], (rows, columns), torch.bfloat16)

    assert exact.is_contiguous() and exact.dtype == torch.float32
    assert torch.equal(exact, expected)
    assert exact.isfinite().all() and exact.std() > 0
    assert torch.equal(narrow, expected.to(torch.bfloat16))


def test_more_than_one_chunk_of_the_real_size() -> None:
    rows, columns = 300, 1024
    assert rows * columns > 2 * module._CHUNK_ELEMENTS
    data = blocks_of("Q4_1", rows, columns)
    expected = dequantize(data, GGMLQuantizationType.Q4_1)
    ours = dequantized(memoryview(data.tobytes()), TYPES["Q4_1"], (rows, columns), torch.float32)
    assert np.array_equal(ours.numpy(), expected)


def test_q8_0_by_hand() -> None:
    block = np.float16(0.5).tobytes() + np.arange(-16, 16, dtype=np.int8).tobytes()
    ours = dequantized(memoryview(block), TYPES["Q8_0"], (32,), torch.float32)
    assert ours.tolist() == [0.5 * value for value in range(-16, 16)]


def test_q4_1_by_hand() -> None:
    nibbles = bytes(low | (15 - low) << 4 for low in range(16))  # low nibbles come first
    block = np.float16(2).tobytes() + np.float16(-3).tobytes() + nibbles
    ours = dequantized(memoryview(block), TYPES["Q4_1"], (32,), torch.float32)
    assert ours.tolist() == [2 * value - 3 for value in [*range(16), *reversed(range(16))]]


def test_a_result_owns_its_memory() -> None:
    data = bytearray(np.arange(4, dtype=np.float32).tobytes())
    ours = dequantized(memoryview(data), TYPES["F32"], (2, 2), torch.float32)
    data[:] = bytes(len(data))
    assert ours.tolist() == [[0, 1], [2, 3]]

"""Native products with packed weights, in every format and instruction set, against float64."""

from __future__ import annotations

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from engine.kernels import _native
from tests.kernels.dense_case import (
    BLOCKS,
    EPSILON,
    FLOATS,
    FORMATS,
    INSTRUCTION_SETS,
    Dense,
    activations,
    address,
    as_floats,
    random_weights,
    rounding,
)

EACH_SET = pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
EACH_FORMAT = pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64)


def sizes(format: GGMLQuantizationType) -> tuple[tuple[int, int], ...]:
    """Outputs and inputs."""
    if format in FLOATS:
        return (1, 1), (5, 40), (16, 32), (33, 72), (48, 576)
    if format in BLOCKS:
        return (1, 32), (16, 64), (37, 96), (48, 576)
    return (1, 256), (37, 512), (16, 768)


def bounds(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """How far float32 sums of products may be off."""
    inputs = weights.shape[1]
    return np.abs(x).astype(np.float64) @ np.abs(weights).astype(np.float64).T * EPSILON * (8 + inputs / 16)


@EACH_SET
@EACH_FORMAT
def test_products(format: GGMLQuantizationType, instruction_set: str) -> None:
    for outputs, inputs in sizes(format):
        data = random_weights(format, outputs, inputs, seed=outputs)
        weights = as_floats(format, data).astype(np.float64)
        dense = Dense(inputs, [(format, data)], instruction_set)
        assert (dense.matrix.outputs, dense.matrix.inputs) == (outputs, inputs)
        for rows in ROWS if inputs < 100 else (1, 5, 8):
            x = activations(rows, inputs, rows)
            bias = activations(1, outputs, 7)[0]
            product = dense.multiply(x, bias, padding=3)
            taken = x if format in FLOATS else dense.rounded(rows)
            expected = taken.astype(np.float64) @ weights.T + bias
            # Codes and minima cancel each other before the sum is made, so the magnitude is theirs.
            largest = (
                np.abs(weights) if format in FLOATS else np.full_like(weights, np.abs(weights).max() * 2)
            )
            assert (np.abs(product - expected) <= bounds(largest, taken) + np.abs(bias) * EPSILON * 4).all()
            if format not in FLOATS:
                exact = x.astype(np.float64) @ weights.T + bias
                allowed = rounding(x) @ np.abs(weights).T * 1.0001
                assert (
                    np.abs(product - exact) <= allowed + bounds(largest, taken) + np.abs(bias) * EPSILON * 4
                ).all()


@EACH_SET
@EACH_FORMAT
def test_rows_threads_and_neighbours_change_no_bit(
    format: GGMLQuantizationType, instruction_set: str
) -> None:
    outputs, inputs = 16 * 13 + 5, 512
    data = random_weights(format, outputs, inputs)
    dense = Dense(inputs, [(format, data)], instruction_set)
    x = activations(70, inputs)
    alone = np.concatenate([dense.multiply(x[row : row + 1]) for row in range(len(x))])
    for threads in (1, 2, 3, 8):
        dense.pool = _native.ThreadPool(threads, [], 20)
        for rows in ROWS:
            assert (dense.multiply(x[:rows]) == alone[:rows]).all(), f"{threads} threads, {rows} rows"
        assert (dense.multiply(x) == alone).all()


@EACH_SET
def test_activations_are_rounded_to_the_nearest_of_255_steps(instruction_set: str) -> None:
    data = random_weights(GGMLQuantizationType.Q8_0, 1, 96)
    dense = Dense(96, [(GGMLQuantizationType.Q8_0, data)], instruction_set)
    x = activations(9, 96) * np.float32(10.0) ** np.arange(-4, 5, dtype=np.float32)[:, None]
    x[3, :32] = 0.0
    x[4, 32:64] = 1e-39
    dense.multiply(x)
    assert (np.abs(dense.rounded(9) - x) <= rounding(x) * 1.0001 + 1e-30).all()


@EACH_FORMAT
def test_lookup_gives_the_floats_that_gguf_gives(format: GGMLQuantizationType) -> None:
    data = random_weights(format, 50, 256)
    dense = Dense(256, [(format, data)])
    ids = [0, 49, 16, 15, 3, 3]
    assert (dense.lookup(ids) == as_floats(format, data)[ids]).all()
    for wrong in (-1, 50):
        with pytest.raises(IndexError):
            dense.lookup([0, wrong])


def test_sources_of_several_formats_follow_one_another() -> None:
    names = ("Q4_K", "Q6_K", "BF16", "Q8_0")
    parts = [
        (GGMLQuantizationType[name], outputs) for name, outputs in zip(names, (20, 16, 7, 33), strict=True)
    ]
    sources = [(format, random_weights(format, outputs, 256)) for format, outputs in parts]
    x = activations(11, 256)
    together = Dense(256, sources, threads=2)
    each = [Dense(256, [source]).multiply(x) for source in sources]
    assert (together.multiply(x) == np.concatenate(each, axis=1)).all()
    assert together.matrix.bytes >= sum(data.nbytes for _, data in sources)
    floats = np.concatenate([as_floats(*source) for source in sources])
    assert (together.lookup(list(range(76))) == floats).all()


def test_order_of_rows() -> None:
    format = GGMLQuantizationType.Q4_0
    data = random_weights(format, 40, 64)
    order = np.random.default_rng(3).permutation(40).astype(np.int64)
    x = activations(3, 64)
    dense = Dense(64, [(format, data)], order=order)
    assert (dense.multiply(x) == Dense(64, [(format, data)]).multiply(x)[:, order]).all()
    for wrong in (-1, 40):
        order[5] = wrong
        with pytest.raises(ValueError, match="order"):
            Dense(64, [(format, data)], order=order)


def test_packed_weights_take_the_room_of_the_file() -> None:
    for name, more in {
        "Q4_0": 0,
        "Q4_1": 0,
        "Q5_0": 0,
        "Q5_1": 0,
        "Q8_0": 0,
        "Q4_K": 0.03,
        "Q5_K": 0.03,
        "Q6_K": 0,
    }.items():
        format = GGMLQuantizationType[name]
        data = random_weights(format, 64, 512)
        assert data.nbytes <= Dense(512, [(format, data)]).matrix.bytes <= data.nbytes * (1 + more)


@pytest.mark.parametrize(
    ("inputs", "format", "outputs"),
    [
        (0, 0, 1),
        (-32, 0, 1),
        (2**31 - 1, 0, 1),
        (33, 2, 1),
        (128, 12, 1),
        (32, 8, 0),
        (32, 8, -1),
        (32, 99, 1),
    ],
)
def test_impossible_sizes_are_refused(inputs: int, format: int, outputs: int) -> None:
    data = np.zeros(1024, np.uint8)
    with pytest.raises(ValueError):
        _native.Matrix(inputs, [(format, outputs, address(data), 0)], "auto", _native.ThreadPool(1, [], 20))


def test_missing_sources_are_refused() -> None:
    pool = _native.ThreadPool(1, [], 20)
    for sources in ([], [(0, 1, 0, 0)]):
        with pytest.raises(ValueError):
            _native.Matrix(32, sources, "auto", pool)
    with pytest.raises(ValueError, match="instruction set"):
        _native.Matrix(32, [(0, 1, 1, 0)], "mmx", pool)


def test_rows_prepared_for_something_else_are_refused() -> None:
    floats, integers = (
        Dense(64, [(format, random_weights(format, 16, 64))])
        for format in (GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0)
    )
    out = np.empty((1, 16), np.float32)
    floats.multiply(activations(1, 64))
    with pytest.raises(ValueError, match="prepared"):
        integers.matrix.multiply(floats.prepared, address(out), 16, 0, floats.pool)


@EACH_SET
@EACH_FORMAT
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf], ids=str)
def test_what_is_not_finite_stays_in_its_row(
    format: GGMLQuantizationType, poison: float, instruction_set: str
) -> None:
    data = random_weights(format, 20, 256)
    dense = Dense(256, [(format, data)], instruction_set)
    x = activations(9, 256)
    clean = dense.multiply(x)
    x[3, 70] = poison
    with np.errstate(invalid="ignore"):
        product = dense.multiply(x)
    assert not np.isfinite(product[3]).any()
    assert (np.delete(product, 3, axis=0) == np.delete(clean, 3, axis=0)).all()


@EACH_SET
@EACH_FORMAT
def test_any_bits_of_a_damaged_file_are_taken(format: GGMLQuantizationType, instruction_set: str) -> None:
    elements, size = GGML_QUANT_SIZES[format]
    data = np.random.default_rng(5).integers(0, 256, (20, 256 // elements * size), np.uint8)
    dense = Dense(256, [(format, data)], instruction_set)
    assert dense.multiply(activations(9, 256)).shape == (9, 20)
    dense.lookup(list(range(20)))


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1"])
def test_float_weights_are_rounded(name: str) -> None:
    format = GGMLQuantizationType[name]
    weights = activations(32, 64, 2)
    weights[5, :32] = 0.0
    blocks = np.empty((32, 2 * GGML_QUANT_SIZES[format][1]), np.uint8)
    _native.quantise_weights(int(format), address(weights), weights.size, address(blocks))
    errors = np.abs(as_floats(format, blocks) - weights).reshape(-1, 32)
    by_block = weights.reshape(-1, 32)
    largest = np.abs(by_block).max(axis=1, keepdims=True)
    spread = by_block.max(axis=1, keepdims=True) - by_block.min(axis=1, keepdims=True)
    # Half a step, and what rounding the scale to float16 moves the code that is furthest out.
    step = {"Q8_0": largest / 127, "Q4_0": largest / 8, "Q4_1": spread / 15}[name]
    edge = step / 2 if name == "Q4_0" else 0.0  # the side without the largest value has one code less
    assert (errors <= step / 2 + edge + largest * 2.0**-10).all()


def test_rounding_of_weights_is_refused() -> None:
    data = np.zeros(64, np.float32)
    for format, count in ((12, 256), (8, 33)):
        with pytest.raises(ValueError):
            _native.quantise_weights(format, address(data), count, address(data))
    data[3] = np.nan
    blocks = np.empty(68, np.uint8)
    _native.quantise_weights(8, address(data), 64, address(blocks))
    assert np.isnan(as_floats(GGMLQuantizationType.Q8_0, blocks.reshape(2, 34))[0]).all()

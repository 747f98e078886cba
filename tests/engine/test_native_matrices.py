"""Native matrices as torch sees them, against the numbers that their blocks stand for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.kernels import _native
from engine.kernels.loader import Kernels, load_kernels
from engine.kernels.matrices import PACKED_TYPES, MatrixPart, Workspace, make_matrix
from engine.models.native_linear import NativeEmbedding, NativeLinear
from engine.models.native_matrices import NativeMatrices
from engine.weights.gguf_checkpoint import GgufCheckpoint
from tests.builders.gguf_files import TinyModel, write_model
from tests.builders.packed import activation_error, blocks, numbers, stored, stored_floats

QKV = [f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkv"]


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    found = load_kernels("auto", 2)
    assert found is not None
    return found


def linear_of(kernels: Kernels, matrix: _native.Matrix, bias: Tensor | None) -> NativeLinear:
    return NativeLinear(matrix, bias, kernels.pool, Workspace(kernels.instruction_set), {})


def native(kernels: Kernels, *parts: MatrixPart, bias: Tensor | None = None) -> NativeLinear:
    return linear_of(kernels, make_matrix(parts, kernels), bias)


def check(linear: NativeLinear, weight: Tensor, rows: int, bias: Tensor | None = None) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, weight.shape[1], generator=generator)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    product = linear(x)
    assert product.shape == exact.shape and product.dtype == x.dtype
    assert ((product.double() - exact).abs() <= activation_error(x, weight)).all()


@pytest.mark.parametrize("rows", [1, 7, 33])
@pytest.mark.parametrize("type_name", sorted(PACKED_TYPES))
def test_packed_blocks_multiply_as_what_they_stand_for(kernels: Kernels, type_name: str, rows: int) -> None:
    outputs, inputs = 40, 512
    data = blocks(type_name, outputs, inputs)
    bias = torch.randn(outputs, generator=torch.Generator().manual_seed(1))
    linear = native(kernels, MatrixPart(stored(type_name, data, inputs), type_name), bias=bias)
    check(linear, numbers(type_name, data, inputs), rows, bias)


@pytest.mark.parametrize("type_name", sorted(PACKED_TYPES))
def test_rows_are_looked_up_exactly(kernels: Kernels, type_name: str) -> None:
    data = blocks(type_name, 70, 256)
    matrix = make_matrix([MatrixPart(stored(type_name, data, 256), type_name)], kernels)
    ids = torch.tensor([69, 0, 16, 16, 33])
    found = NativeEmbedding(matrix, torch.float32, {})(ids)
    torch.testing.assert_close(found, numbers(type_name, data, 256)[ids], rtol=1e-6, atol=1e-8)


def test_parts_of_different_types_are_one_matrix(kernels: Kernels) -> None:
    parts, weights = [], []
    for seed, (type_name, outputs) in enumerate((("Q4_K", 48), ("Q6_K", 23), ("Q4_0", 16), ("Q8_0", 5))):
        data = blocks(type_name, outputs, 256, seed)
        parts.append(MatrixPart(stored(type_name, data, 256), type_name))
        weights.append(numbers(type_name, data, 256))
    check(native(kernels, *parts), torch.cat(weights), 9)


@pytest.mark.parametrize("matrix_type", ["Q8_0", "Q4_1"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_rows_that_a_file_interleaves_are_put_back_in_order(
    tmp_path: Path, kernels: Kernels, architecture: str, matrix_type: str
) -> None:
    model = TinyModel(architecture=architecture)
    checkpoint = GgufCheckpoint(write_model(tmp_path / "m.gguf", model, matrix_type=matrix_type))
    linear = NativeMatrices(checkpoint, torch.float32, kernels).linear(QKV, None)
    weight = torch.cat([checkpoint.load(name, torch.float32) for name in QKV])
    assert isinstance(linear, NativeLinear)
    assert linear.held.elements == {matrix_type: weight.numel()}
    check(linear, weight, 5)


@pytest.mark.parametrize("tied", [True, False])
def test_embedding_and_head(tmp_path: Path, kernels: Kernels, tied: bool) -> None:
    path = write_model(tmp_path / "m.gguf", TinyModel(tied=tied), matrix_type="Q8_0")
    checkpoint = GgufCheckpoint(path)
    names = ("model.embed_tokens.weight", None if tied else "lm_head.weight")
    embedding, head = NativeMatrices(checkpoint, torch.float32, kernels).vocabulary(*names)
    assert (embedding.held.owner is head.held.owner) == tied
    rows = checkpoint.load(names[0], torch.float32)
    torch.testing.assert_close(embedding(torch.arange(len(rows))), rows, rtol=1e-6, atol=1e-8)
    assert isinstance(head, NativeLinear)
    check(head, rows if tied else checkpoint.load("lm_head.weight", torch.float32), 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 64), (37, 72)])
def test_float_matrices(kernels: Kernels, dtype: torch.dtype, outputs: int, inputs: int) -> None:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(outputs)).to(dtype)
    name = {torch.float32: "F32", torch.bfloat16: "BF16"}[dtype]
    check(native(kernels, MatrixPart(stored_floats(weight), name)), weight.float(), 6)


@pytest.mark.parametrize(("outputs", "inputs"), [(48, 64), (37, 96)])
@pytest.mark.parametrize(("format_", "steps"), [("Q8_0", 254), ("Q4_1", 15)])
def test_floats_are_quantised_to_the_nearest_step(
    kernels: Kernels, format_: str, steps: int, outputs: int, inputs: int
) -> None:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(outputs))
    matrix = make_matrix([MatrixPart(stored_floats(weight), format_)], kernels)
    kept = NativeEmbedding(matrix, torch.float32, {})(torch.arange(outputs))
    span = weight.unflatten(1, (-1, 32))
    width = 2 * span.abs().amax(-1) if format_ == "Q8_0" else span.amax(-1) - span.amin(-1)
    allowed = (width / steps).repeat_interleave(32, 1)
    # Half a step, and what a float16 scale and minimum are off by.
    assert ((kept - weight).abs() <= 0.5 * allowed + 2e-3 * weight.abs().amax()).all()
    check(linear_of(kernels, matrix, None), kept, 4)


@pytest.mark.parametrize("type_name", sorted(PACKED_TYPES))
def test_damaged_blocks_give_numbers_that_are_none_at_worst(kernels: Kernels, type_name: str) -> None:
    shape = blocks(type_name, 16, 256).shape
    for fill in (0x00, 0x7C, 0xFF):
        data = np.full(shape, fill, dtype=np.uint8)
        linear = native(kernels, MatrixPart(stored(type_name, data, 256), type_name))
        assert linear(torch.ones(3, 256)).shape == (3, 16)
    data = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    linear = native(kernels, MatrixPart(stored(type_name, data, 256), type_name))
    assert linear(torch.full((2, 256), torch.nan)).shape == (2, 16)


def test_threads_may_multiply_at_once(kernels: Kernels) -> None:
    data = blocks("Q4_1", 96, 256)
    linear = native(kernels, MatrixPart(stored("Q4_1", data, 256), "Q4_1"))
    inputs = [torch.randn(3 + each, 256) for each in range(8)]
    alone = [linear(x) for x in inputs]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(20):
            together = list(threads.map(linear, inputs))
            assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


def test_a_row_does_not_depend_on_the_others(kernels: Kernels) -> None:
    data = blocks("Q4_K", 50, 256)
    linear = native(kernels, MatrixPart(stored("Q4_K", data, 256), "Q4_K"))
    x = torch.randn(40, 256)
    assert torch.equal(linear(x)[17:18], linear(x[17:18]))
    assert torch.equal(linear(x)[:9], linear(x[:9]))

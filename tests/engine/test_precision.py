"""Which weights are packed, quantised, dequantised or refused; whole models of packed weights."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.kernels.loader import Kernels, load_kernels
from engine.model_error import ModelError
from engine.model_loader import compute_dtype, load_model
from engine.models.decoder import DecoderModel
from engine.models.weight_facts import weight_facts
from engine.precision import DType, Precision, Quantization, choose_precision
from engine.weights.check import open_checkpoint
from engine.weights.checkpoint import Checkpoint
from engine.weights.source import resolve
from tests.builders.gguf_files import TinyModel, reference_tensors, write_model
from tests.builders.paged_model import PagedModel
from tests.builders.tiny_models import CASES, make_tiny_model

FAMILIES = {
    "llama": TinyModel(),
    "llama untied, biased": TinyModel(tied=False, qkv_bias=True),
    "qwen2": TinyModel(architecture="qwen2", qkv_bias=True),
    "qwen3": TinyModel(architecture="qwen3", tied=False),
    "gemma3": TinyModel(architecture="gemma3", extra={"attention.sliding_window": 16}),
}
AUTO = compute_dtype("auto")


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    found = load_kernels("auto", 2)
    assert found is not None
    return found


def gguf(directory: Path, matrix_type: str, model: TinyModel = FAMILIES["llama"]) -> Checkpoint:
    # As in a trained model, a matrix keeps the size of what goes through it.
    tensors = {
        name: values if values.ndim == 1 else values * np.float32(1.5 / math.sqrt(values.shape[-1]))
        for name, values in reference_tensors(model).items()
    }
    path = write_model(directory / "tiny.gguf", model, tensors, matrix_type)
    return open_checkpoint(resolve(str(path)))


def loaded(checkpoint: Checkpoint, precision: Precision, kernels: Kernels | None) -> DecoderModel:
    return load_model(checkpoint, precision.compute, make_matrices=precision.matrices(kernels))


@pytest.mark.parametrize(
    ("matrix_type", "dtype", "quantization", "expected"),
    [
        ("Q4_1", "auto", "auto", Precision(torch.float32, packed=True)),
        ("Q4_1", "float32", "auto", Precision(torch.float32)),
        ("Q4_1", "bfloat16", "auto", Precision(torch.bfloat16)),
        ("Q4_1", "auto", "none", Precision(AUTO)),
        ("F16", "auto", "auto", Precision(AUTO)),
        ("F16", "auto", "int8", Precision(torch.float32, quantize_to="int8")),
        ("BF16", "bfloat16", "int4", Precision(torch.bfloat16, quantize_to="int4")),
    ],
)
def test_what_is_chosen(
    tmp_path: Path,
    kernels: Kernels,
    matrix_type: str,
    dtype: DType,
    quantization: Quantization,
    expected: Precision,
) -> None:
    assert choose_precision(dtype, quantization, gguf(tmp_path, matrix_type), kernels) == expected


def test_without_kernels_weights_are_dequantised(tmp_path: Path) -> None:
    checkpoint = gguf(tmp_path, "Q4_1")
    precision = choose_precision("auto", "auto", checkpoint, None)
    assert precision == Precision(AUTO)
    facts = weight_facts(loaded(checkpoint, precision, None).parts)
    assert facts.formats == str(AUTO).removeprefix("torch.")


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_what_is_quantised_already_is_refused_by_name(
    tmp_path: Path, kernels: Kernels, quantization: Quantization
) -> None:
    message = rf"tiny: quantization {quantization} is for float weights; the file's are .* \(Q5_0\)"
    with pytest.raises(ModelError, match=message):
        choose_precision("auto", quantization, gguf(tmp_path, "Q5_0"), kernels)


def test_quantising_without_kernels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="quantization int8 needs native kernels"):
        choose_precision("auto", "int8", gguf(tmp_path, "F32"), None)


@pytest.mark.parametrize(
    ("matrix_type", "quantization", "formats"),
    [
        ("Q4_1", "auto", "Q4_1"),
        ("F32", "int8", "Q8_0"),
        ("F16", "int4", "Q4_1, Q8_0"),
        ("Q4_1", "none", str(AUTO).removeprefix("torch.")),
    ],
)
def test_the_facts_tell_formats_and_bytes(
    tmp_path: Path, kernels: Kernels, matrix_type: str, quantization: Quantization, formats: str
) -> None:
    checkpoint = gguf(tmp_path, matrix_type)
    model = loaded(checkpoint, choose_precision("auto", quantization, checkpoint, kernels), kernels)
    facts = weight_facts(model.parts)
    assert facts.formats == formats
    if matrix_type == "Q4_1" and quantization == "auto":
        matrices = [name for name in checkpoint.names if len(checkpoint.shape(name)) == 2]
        in_file = sum(checkpoint.nbytes(name) for name in matrices)
        assert in_file <= facts.nbytes <= 1.1 * in_file


@pytest.mark.parametrize("matrix_type", ["Q8_0", "Q4_1"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_model_gives_the_logits_of_its_numbers(
    tmp_path: Path, kernels: Kernels, family: str, matrix_type: str
) -> None:
    checkpoint = gguf(tmp_path, matrix_type, FAMILIES[family])
    tokens = [(7 * each) % 61 for each in range(30)]
    exact = PagedModel(load_model(checkpoint, torch.float32)).all_logits(tokens).log_softmax(-1)
    packed = loaded(checkpoint, choose_precision("auto", "auto", checkpoint, kernels), kernels)
    found = PagedModel(packed).all_logits(tokens).log_softmax(-1)
    assert packed.dtype == torch.float32
    assert (exact.exp() * (exact - found)).sum(-1).mean() <= 0.02
    assert not torch.equal(exact, found)


def test_every_tensor_is_counted_once_while_loading(tmp_path: Path, kernels: Kernels) -> None:
    checkpoint = gguf(tmp_path, "Q4_1")
    precision = choose_precision("auto", "auto", checkpoint, kernels)
    calls: list[tuple[int, int, int, int]] = []
    load_model(checkpoint, torch.float32, lambda *counts: calls.append(counts), precision.matrices(kernels))
    assert [done for done, *_ in calls] == list(range(len(checkpoint.names) + 1))
    assert calls[-1][2] == calls[-1][3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", CASES)
def test_native_floats_give_the_logits_of_torch(
    tmp_path: Path, kernels: Kernels, family: str, dtype: torch.dtype
) -> None:
    checkpoint = open_checkpoint(resolve(str(make_tiny_model(family, tmp_path).directory)))
    tokens = [(7 * each) % 301 for each in range(30)]
    expected = PagedModel(load_model(checkpoint, dtype)).all_logits(tokens)
    native = load_model(checkpoint, dtype, None, Precision(dtype).matrices(kernels, native_floats=True))
    found = PagedModel(native).all_logits(tokens)
    assert weight_facts(native.parts).formats == str(dtype).removeprefix("torch.")
    allowed = 1e-4 if dtype == torch.float32 else 0.3
    assert (found - expected).abs().max() <= allowed * expected.abs().max()


def test_matrices_that_are_no_whole_blocks_stay_floats(tmp_path: Path, kernels: Kernels) -> None:
    checkpoint = open_checkpoint(resolve(str(make_tiny_model("llama", tmp_path).directory)))
    model = loaded(checkpoint, choose_precision("auto", "int4", checkpoint, kernels), kernels)
    # Hidden size 72, but down and output have 96 inputs.
    assert weight_facts(model.parts).formats == "float32, Q4_1"

"""What SmolLM2 loses by each way of keeping its weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.kernels.loader import Kernels, load_kernels
from engine.model_loader import load_model
from engine.models.native_matrices import NativeMatrices, Quantization
from engine.models.registry import model_class
from engine.precision import Precision
from engine.weights.check import open_checkpoint
from engine.weights.checkpoint import Checkpoint
from engine.weights.source import resolve
from tests.builders.weight_formats import FloatModel, log_probabilities, loss

LOSS = {"packed": (8e-3, 0.94), "int8": (1.2e-2, 0.93), "int4": (0.7, 0.55)}
"""Most nats of Kullback-Leibler divergence a token from float32, on average, and least share of tokens
whose likeliest successor is the same."""


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(resolve("smollm2-135m-instruct"))


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    found = load_kernels("auto", 2)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def exact(checkpoint: Checkpoint) -> Tensor:
    return log_probabilities(load_model(checkpoint, torch.float32))


@pytest.mark.parametrize("kept", list(LOSS))
def test_what_a_format_loses(checkpoint: Checkpoint, kernels: Kernels, exact: Tensor, kept: str) -> None:
    if kept == "packed":
        matrices = Precision(torch.float32, packed=True).matrices(kernels)
        model = load_model(checkpoint, torch.float32, make_matrices=matrices)
    else:
        to: Quantization = "int8" if kept == "int8" else "int4"
        source = FloatModel(checkpoint)
        quantised = NativeMatrices(source, torch.float32, kernels, to)
        model = model_class(checkpoint.config)(checkpoint.config, source, torch.float32, quantised)
    divergence, agreement = loss(exact, log_probabilities(model))
    print(f"{kept}: {divergence:.1e} nats, likeliest token the same for {agreement:.1%}")
    most, least = LOSS[kept]
    assert divergence <= most
    assert agreement >= least


def test_off_the_grid_the_model_is_the_same(checkpoint: Checkpoint, exact: Tensor) -> None:
    model = model_class(checkpoint.config)(checkpoint.config, FloatModel(checkpoint), torch.float32)
    divergence, agreement = loss(exact, log_probabilities(model))
    assert divergence <= 1e-6
    assert agreement == 1

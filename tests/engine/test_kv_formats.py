"""Every way of keeping keys and values: torch and the kernels agree, and what a real model loses by each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.model_loader import load_model
from engine.models.decoder import DecoderModel
from engine.weights.check import open_checkpoint
from engine.weights.source import resolve
from server.text.tokenizer import load_tokenizer
from tests.builders.paged_model import PagedModel

TOKENS, CHUNK, DECODED = 240, 90, 20
LOSS = {torch.float32: 1e-7, torch.bfloat16: 1e-4, torch.float16: 5e-6, torch.int8: 8e-3}
"""Most nats of Kullback-Leibler divergence a token, on average, from keys and values in float32."""


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    return list(load_tokenizer(resolve("smollm2-135m-instruct")).encode(text))[:TOKENS]


@pytest.fixture(scope="module")
def model() -> DecoderModel:
    return load_model(open_checkpoint(resolve("smollm2-135m-instruct")), torch.float32)


def log_probabilities(
    model: DecoderModel, tokens: list[int], kv_dtype: torch.dtype, kernels: str = "auto"
) -> Tensor:
    """After each token, the last ones decoded one by one."""
    paged = PagedModel(model, kv_dtype=kv_dtype, kernels=kernels)
    end = len(tokens) - DECODED
    parts = [paged.all_logits(tokens[first : min(first + CHUNK, end)]) for first in range(0, end, CHUNK)]
    parts += [paged.all_logits([token]) for token in tokens[end:]]
    return torch.cat(parts).log_softmax(-1)


def divergence(expected: Tensor, actual: Tensor) -> float:
    return (expected.exp() * (expected - actual)).sum(-1).mean().item()


@pytest.fixture(scope="module")
def exact(model: DecoderModel, tokens: list[int]) -> Tensor:
    return log_probabilities(model, tokens, torch.float32, "torch")


@pytest.mark.parametrize("kv_dtype", list(LOSS), ids=str)
def test_what_a_format_loses(
    model: DecoderModel, tokens: list[int], exact: Tensor, kv_dtype: torch.dtype
) -> None:
    native = log_probabilities(model, tokens, kv_dtype)
    reference = log_probabilities(model, tokens, kv_dtype, "torch")
    agreement = (native.argmax(-1) == exact.argmax(-1)).float().mean().item()
    print(f"{kv_dtype}: {divergence(exact, native):.1e} nats, likeliest token the same for {agreement:.1%}")
    assert divergence(exact, native) <= LOSS[kv_dtype]
    assert divergence(exact, reference) <= LOSS[kv_dtype]
    assert divergence(reference, native) <= LOSS[kv_dtype]
    assert agreement >= 0.97


def test_scalar_kernels_run_a_model_too(model: DecoderModel, tokens: list[int], exact: Tensor) -> None:
    assert (log_probabilities(model, tokens, torch.float32, "scalar") - exact).abs().max() <= 1e-3

"""Every family against transformers' eager float32 implementation, through real pages and plans.

Both of the engine's ways through a model: torch's layers, and the native step.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.builders.paged_model import PagedModel, Runner, load_directory
from tests.builders.tiny_models import CASES, NATIVE_CASES, VOCABULARY, TinyModel, make_tiny_model


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    """Each case made once."""

    def make(name: str) -> TinyModel:
        directory: Path = tmp_path_factory.mktemp(name)
        return make_tiny_model(name, directory)

    return cache(make)


RUNS = [(name, "torch") for name in CASES] + [(name, "native") for name in NATIVE_CASES]


@pytest.fixture(scope="module", params=RUNS, ids="-".join)
def run(request: pytest.FixtureRequest) -> tuple[str, Runner]:
    return request.param


@pytest.fixture(scope="module")
def tiny(run: tuple[str, Runner], saved: Callable[[str], TinyModel]) -> TinyModel:
    return saved(run[0])


@pytest.fixture(scope="module")
def paged_model(run: tuple[str, Runner], tiny: TinyModel) -> Callable[..., PagedModel]:
    model = load_directory(tiny.directory, runner=run[1])
    return partial(PagedModel, model, runner=run[1])


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY), k=length)


def chunks(tokens: list[int], rng: random.Random, largest: int) -> list[list[int]]:
    cut: list[list[int]] = []
    while tokens:
        size = rng.randint(1, largest)
        cut.append(tokens[:size])
        tokens = tokens[size:]
    return cut


def prefill_and_decode(tokens: list[int], rng: random.Random) -> list[list[int]]:
    """The first half in chunks, the rest one by one."""
    half = len(tokens) // 2
    return chunks(tokens[:half], rng, largest=20) + [[token] for token in tokens[half:]]


def assert_close(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == torch.float32
    assert actual.shape == expected.shape
    allowed = 1e-5 * (expected.max() - expected.min())
    assert (actual - expected).abs().max() <= allowed


def test_whole_prompt(tiny: TinyModel, paged_model: Callable[..., PagedModel]):
    tokens = prompt(83, seed=1)
    assert_close(paged_model().all_logits(tokens), tiny.logits(tokens))


@pytest.mark.parametrize("page_size", [8, 16, 32])
def test_chunks_of_any_size_then_decoding(
    tiny: TinyModel, paged_model: Callable[..., PagedModel], page_size: int
):
    tokens = prompt(90, seed=page_size)
    expected = tiny.logits(tokens)
    paged = paged_model(page_size)
    done = 0
    for chunk in chunks(tokens[:70], random.Random(page_size), largest=23) + [[each] for each in tokens[70:]]:
        actual = paged.all_logits(chunk)
        assert_close(actual, expected[done : done + len(chunk)])
        done += len(chunk)


def test_sequences_of_a_mixed_batch_are_as_if_alone(tiny: TinyModel, paged_model: Callable[..., PagedModel]):
    """Sequences join one after another, so that every iteration mixes chunks with decoding."""
    rng = random.Random(5)
    sequences = {each: prompt(length, seed=each) for each, length in enumerate((61, 7, 40, 1, 25, 96))}
    expected = {each: tiny.logits(tokens) for each, tokens in sequences.items()}
    waiting = {each: prefill_and_decode(tokens, rng) for each, tokens in sequences.items()}
    paged = paged_model(8)
    done = dict.fromkeys(sequences, 0)
    iteration = 0
    while waiting:
        iteration += 1
        now = [each for each in waiting if each <= iteration]
        rng.shuffle(now)
        step = {each: waiting[each].pop(0) for each in now}
        for each, logits in paged.last_logits(step).items():
            done[each] += len(step[each])
            assert_close(logits, expected[each][done[each] - 1])
        waiting = {each: rest for each, rest in waiting.items() if rest}


def test_bfloat16_is_near(run: tuple[str, Runner], tiny: TinyModel):
    """bfloat16 weights and pages: within a few of bfloat16's 3-digit steps of the exact logits."""
    tokens = prompt(40, seed=3)
    expected = tiny.logits(tokens)
    model = load_directory(tiny.directory, torch.bfloat16, run[1])
    paged = PagedModel(model, runner=run[1])
    actual = torch.cat([paged.all_logits(tokens[:30]), *(paged.all_logits([each]) for each in tokens[30:])])
    error = (actual - expected).pow(2).mean().sqrt() / expected.std()
    assert 1e-4 < error < 0.05

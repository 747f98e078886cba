"""Native sampling against the numpy code, on every instruction set: same uniform number, same token."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.loader import load_kernels
from engine.sampler import NO_TOKEN, sample
from engine.sampling.native import NativeSampler
from scheduler.plan import SampleSpec
from scheduler.types import SamplingParams

_native = pytest.importorskip("engine.kernels._native")
Samplers = dict[str, NativeSampler]
EACH = pytest.mark.parametrize("name", _native.instruction_sets())


@pytest.fixture(scope="module")
def samplers() -> Samplers:
    return {name: native_sampler(name, 2) for name in _native.instruction_sets()}


def native_sampler(instruction_set: str, threads: int) -> NativeSampler:
    kernels = load_kernels(instruction_set, threads)
    assert kernels is not None
    return NativeSampler(kernels)


def spec_of(history: tuple[int, ...] = (), **params) -> SampleSpec:
    sampling = SamplingParams(**{"max_tokens": 100, "seed": 7, **params})
    return SampleSpec(
        params=sampling,
        choice=1,
        output_length=len(history) // 2,
        prompt_length=len(history) - len(history) // 2,
        history=history if sampling.needs_history else None,
    )


@st.composite
def specs(draw: st.DrawFn) -> SampleSpec:
    token = st.integers(0, 2999)
    return spec_of(
        history=tuple(draw(st.lists(token, min_size=1, max_size=8))),
        temperature=draw(st.sampled_from((0.0, 1e-310, 0.3, 1.0, 2.0))),
        top_k=draw(st.sampled_from((0, 0, 1, 7, 40, 700, 5000))),
        top_p=draw(st.one_of(st.just(1.0), st.floats(0, 1))),
        min_p=draw(st.one_of(st.just(0.0), st.floats(0, 1, exclude_max=True))),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        repetition_penalty=draw(st.sampled_from((1.0, 1.0, 1.3))),
        frequency_penalty=draw(st.sampled_from((0.0, 0.0, 2.0))),
        logit_bias=draw(st.sampled_from(({}, {}, {5: 4.0, 2990: -100.0}))),
        logprobs=draw(st.sampled_from((None, 0, 5, 20))),
        min_tokens=draw(st.sampled_from((0, 9))),
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    rows=st.lists(specs(), min_size=1, max_size=4),
    vocabulary=st.sampled_from((1, 63, 255, 1024, 1500, 2999, 3000)),
    spread=st.sampled_from((0.01, 1.0, 5.0, 40.0)),
    tied=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_the_same_tokens_and_logprobs_as_numpy(
    samplers: Samplers, rows: list[SampleSpec], vocabulary: int, spread: float, tied: bool, seed: int
) -> None:
    logits = torch.randn(len(rows), vocabulary, generator=torch.Generator().manual_seed(seed)) * spread
    logits = logits.round() if tied else logits
    expected = sample(logits, rows, (2,))
    for name, native in samplers.items():
        drawn = sample(logits, rows, (2,), native)
        assert [token for token, _ in drawn] == [token for token, _ in expected], name
        for (_, mine), (_, theirs) in zip(drawn, expected, strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None and theirs is not None:
                assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-11)
                assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]
                assert [x for _, x in mine.top] == pytest.approx([x for _, x in theirs.top], abs=1e-11)


@EACH
@pytest.mark.parametrize("vocabulary", [1, 16, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf, -math.inf])
def test_one_odd_logit_anywhere(samplers: Samplers, name: str, vocabulary: int, value: float) -> None:
    places = sorted({0, vocabulary // 2, vocabulary - 1})
    logits = torch.zeros(len(places), vocabulary)
    for row, place in enumerate(places):
        logits[row, place] = value
    rows = [spec_of(temperature=t) for t in (0.0, 1.0, 0.5)][: len(places)]
    drawn = sample(logits, rows, (), samplers[name])
    assert drawn == sample(logits, rows, ())
    assert all((token == NO_TOKEN) is (value != -math.inf or vocabulary == 1) for token, _ in drawn)


@EACH
@pytest.mark.parametrize("tied", [False, True])
def test_nuclei_of_many_sizes(samplers: Samplers, name: str, tied: bool) -> None:
    """Flat rows: thousands of candidates, found by mass without sorting them."""
    logits = torch.randn(16, 9001, generator=torch.Generator().manual_seed(1)) * 0.5
    logits = (logits * 4).round() / 4 if tied else logits
    for top_p in (1e-9, 0.1, 0.5, 0.9, 0.999, 1 - 1e-9):
        rows = [spec_of(seed=row, top_p=top_p, temperature=0.8) for row in range(16)]
        assert sample(logits, rows, (), samplers[name]) == sample(logits, rows, ())


def test_results_do_not_depend_on_threads() -> None:
    logits = torch.randn(9, 4099, generator=torch.Generator().manual_seed(2)) * 3
    rows = [spec_of(seed=row, top_p=0.9, logprobs=4, top_k=row * 30) for row in range(9)]
    drawn = [sample(logits, rows, (), native_sampler("auto", threads)) for threads in (1, 2, 3)]
    assert drawn[0] == drawn[1] == drawn[2]

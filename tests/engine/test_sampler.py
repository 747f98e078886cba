"""The sampler against a plain-Python reference, and the promises that hold for every batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import sampler
from engine.kernels.loader import load_kernels
from engine.sampler import NO_TOKEN
from engine.sampling.drawing import draw
from engine.sampling.native import NativeSampler
from engine.sampling.randomness import uniform
from scheduler.plan import SampleSpec
from scheduler.types import SamplingParams
from tests.engine import sampling_reference as reference

EOS = (2,)
NATIVE: list[NativeSampler] = []


@pytest.fixture(autouse=True, scope="module")
def native() -> Iterator[None]:
    """Where there are kernels, for as long as these tests run."""
    kernels = load_kernels("auto", 2)
    NATIVE.extend([] if kernels is None else [NativeSampler(kernels)])
    yield
    NATIVE.clear()


def sample(logits: torch.Tensor, specs: list[SampleSpec], eos: tuple[int, ...]) -> list[sampler.Sampled]:
    """As the engine samples; where that is not numpy, numpy has to agree."""
    drawn = sampler.sample(logits, specs, eos)
    if not NATIVE:
        return drawn
    native = sampler.sample(logits, specs, eos, NATIVE[0])
    assert [token for token, _ in native] == [token for token, _ in drawn]
    for (_, mine), (_, theirs) in zip(native, drawn, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-12)
            assert [token for token, _ in mine.top] == [token for token, _ in theirs.top]
            assert [x for _, x in mine.top] == pytest.approx([x for _, x in theirs.top], abs=1e-12)
    return native


def spec_of(
    *, choice: int = 0, prompt: tuple[int, ...] = (0,), output: tuple[int, ...] = (), **params
) -> SampleSpec:
    sampling = SamplingParams(**{"max_tokens": 100, "seed": 7, **params})
    return SampleSpec(
        params=sampling,
        choice=choice,
        output_length=len(output),
        prompt_length=len(prompt),
        history=prompt + output if sampling.needs_history else None,
    )


def sample_one(row: list[float], spec: SampleSpec, eos: tuple[int, ...] = EOS):
    return sample(torch.tensor([row], dtype=torch.float32), [spec], eos)[0]


# -- against the reference


def logit() -> st.SearchStrategy[float]:
    """Half of them small integers, so that ties are common."""
    return st.one_of(st.floats(-30, 30, width=32), st.integers(-3, 3).map(float))


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[float], SampleSpec]:
    vocab = draw(st.integers(3, 40))
    token = st.integers(0, vocab - 1)
    prompt = tuple(draw(st.lists(token, min_size=1, max_size=6)))
    output = tuple(draw(st.lists(token, max_size=6)))
    spec = spec_of(
        choice=draw(st.integers(0, 127)),
        prompt=prompt,
        output=output,
        temperature=draw(st.one_of(st.just(0.0), st.just(1.0), st.floats(0.05, 2))),
        top_k=draw(st.one_of(st.just(0), st.integers(1, 50))),
        top_p=draw(st.one_of(st.just(1.0), st.floats(0, 1))),
        min_p=draw(st.one_of(st.just(0.0), st.floats(0, 1, exclude_max=True))),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        repetition_penalty=draw(st.sampled_from((1.0, 0.7, 1.3))),
        presence_penalty=draw(st.sampled_from((0.0, -2.0, 1.1))),
        frequency_penalty=draw(st.sampled_from((0.0, -0.4, 2.0))),
        logit_bias=draw(st.dictionaries(token, st.floats(-100, 100), max_size=3)),
        logprobs=draw(st.one_of(st.none(), st.integers(0, 20))),
        stop_token_ids=draw(st.sampled_from(((), (1,)))),
        ignore_eos=draw(st.booleans()),
        min_tokens=draw(st.integers(0, 6)),
    )
    return draw(st.lists(logit(), min_size=vocab, max_size=vocab)), spec


@settings(max_examples=600, deadline=None, derandomize=True)
@given(cases())
def test_whole_pipeline_equals_the_reference(case: tuple[list[float], SampleSpec]) -> None:
    row, spec = case
    token, logprobs = sample_one(row, spec)
    assert token in reference.acceptable_tokens(row, spec, EOS)
    if spec.params.logprobs is None:
        assert logprobs is None
        return
    expected = reference.log_softmax(row)
    ranked = sorted(range(len(row)), key=lambda i: (-row[i], i))[: spec.params.logprobs]
    assert logprobs is not None and logprobs.token_id == token
    assert logprobs.logprob == pytest.approx(expected[token], abs=1e-9)
    assert [i for i, _ in logprobs.top] == ranked
    assert [x for _, x in logprobs.top] == pytest.approx([expected[i] for i in ranked], abs=1e-9)


@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"top_p": 0.5},
        {"top_p": 0.999},
        {"top_k": 50},
        {"top_k": 1500, "top_p": 0.9},
        {"min_p": 0.05},
        {"top_k": 2000, "top_p": 0.97, "min_p": 0.001},
    ],
)
def test_large_vocabulary_equals_the_reference(spread: float, filters: dict[str, float]) -> None:
    """Flat rows keep thousands of tokens under top_p, peaked ones a few."""
    row = (torch.randn(3000, generator=torch.Generator().manual_seed(3)) * spread).tolist()
    for seed in range(3):
        spec = spec_of(seed=seed, **filters)
        assert sample_one(row, spec)[0] in reference.acceptable_tokens(row, spec, EOS)


def test_philox_known_answer_and_library_agree() -> None:
    # Random123's kat_vectors: philox4x64 10, zero counter and key.
    zeros = reference.philox_4x64_10((0, 0, 0, 0), (0, 0))
    assert zeros[:2] == (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC)
    for seed, choice, position in [(0, 0, 0), (-1, 3, 9), (2**63 - 1, 127, 100_000)]:
        assert uniform(seed, choice, position) == reference.uniform(seed, choice, position)


# -- the draw


def test_drawn_frequencies_follow_the_softmax() -> None:
    """Pearson's chi-square over positions, seeds and choices; 9 degrees of freedom, p = 0.001: 27.88."""
    row = [math.log(w) for w in (1, 2, 3, 4, 5, 6, 7, 8, 9, 55)]
    draws = 8000
    streams = {
        "positions": [spec_of(seed=1, output=(0,) * i) for i in range(draws)],
        "seeds": [spec_of(seed=i) for i in range(draws)],
        "choices": [spec_of(seed=1, choice=i) for i in range(draws)],
    }
    for name, specs in streams.items():
        counts = [0] * 10
        for token, _ in sample(torch.tensor([row] * draws), specs, ()):
            counts[token] += 1
        expected = [draws * w / 100 for w in (1, 2, 3, 4, 5, 6, 7, 8, 9, 55)]
        chi_square = sum((n - e) ** 2 / e for n, e in zip(counts, expected, strict=True))
        assert chi_square < 27.88, name


def test_seed_choice_and_position_give_different_streams() -> None:
    row = torch.zeros(1, 1000)

    def stream(seed: int, choice: int) -> tuple[int, ...]:
        specs = [spec_of(seed=seed, choice=choice, output=(0,) * i) for i in range(8)]
        return tuple(token for token, _ in sample(row.expand(8, -1), specs, ()))

    streams = {stream(seed, choice) for seed in (0, 1, 2**63, -5) for choice in (0, 1, 2)}
    assert len(streams) == 12
    assert all(len(set(tokens)) > 4 for tokens in streams)
    assert stream(0, 0) == stream(0, 0)


@pytest.mark.parametrize("size", [5, 256, 600])
def test_tokens_without_weight_are_never_drawn(size: int) -> None:
    weights = np.zeros(size)
    weights[[1, size - 2]] = 0.1, 0.3
    assert draw(weights, 0.0) == 1
    assert draw(weights, 0.25 - 2**-53) == 1
    assert draw(weights, 0.25) == size - 2
    assert draw(weights, 1 - 2**-53) == size - 2


# -- independence of batch mates


def mixed_specs() -> list[SampleSpec]:
    kinds = [
        {"temperature": 0.0},
        {},
        {"temperature": 0.7, "top_p": 0.9},
        {"top_k": 40, "logprobs": 5},
        {"min_p": 0.02, "repetition_penalty": 1.2},
        {"temperature": 0.0, "frequency_penalty": 0.5, "logprobs": 0},
        {"temperature": 1.7, "top_p": 0.99, "top_k": 2000},
        {"min_tokens": 9, "logit_bias": {5: 4.0}},
    ]
    return [
        spec_of(seed=i, choice=i % 3, prompt=(1, 2, 3), output=(4, 5, i), **kinds[i % len(kinds)])
        for i in range(64)
    ]


def test_a_row_alone_equals_the_row_in_a_mixed_batch() -> None:
    logits = torch.randn(64, 9001, generator=torch.Generator().manual_seed(5)) * 3
    before = logits.clone()
    specs = mixed_specs()
    together = sample(logits, specs, EOS)
    alone = [sample(logits[i : i + 1].clone(), [specs[i]], EOS)[0] for i in range(64)]
    order = torch.randperm(64, generator=torch.Generator().manual_seed(6)).tolist()
    shuffled = sample(logits[order], [specs[i] for i in order], EOS)
    assert together == alone  # logprobs bit for bit
    assert [together[i] for i in order] == shuffled
    assert torch.equal(logits, before)


def test_broken_rows_fail_alone() -> None:
    logits = torch.zeros(6, 50)
    logits[1, 7] = math.nan
    logits[2, 7] = math.inf
    logits[3, :] = -math.inf
    logits[4, 10:] = -math.inf
    specs = [spec_of(temperature=t, logprobs=1) for t in (0, 0, 1, 1, 1, 1)]
    result = sample(logits, specs, EOS)
    assert [result[i] for i in (1, 2, 3)] == [(NO_TOKEN, None)] * 3
    assert result[0][0] == 0
    assert 0 <= result[4][0] < 10
    assert result[5] == sample(logits[5:], specs[5:], EOS)[0]


def test_a_token_with_logit_minus_infinity_has_the_lowest_logprob() -> None:
    token, logprobs = sample_one([0.0, -math.inf, 0.0], spec_of(logprobs=3))
    assert token != 1
    assert logprobs is not None and logprobs.top[2] == (1, -9999.0)


def test_rows_and_specs_must_match() -> None:
    with pytest.raises(ValueError, match="2 rows of logits for 1 sample specs"):
        sample(torch.zeros(2, 5), [spec_of()], EOS)


# -- single rules, at their extremes


def test_greedy_ties_go_to_the_lowest_id() -> None:
    rows = torch.zeros(3, 49_152)
    rows[1, [700, 20_000, 49_151]] = 1.0
    rows[2, 49_151] = 1.0
    greedy = spec_of(temperature=0.0)
    assert [token for token, _ in sample(rows, [greedy] * 3, EOS)] == [0, 700, 49_151]


def test_greedy_ignores_the_seed() -> None:
    assert {sample_one([0.0, 1.0, 1.0], spec_of(temperature=0.0, seed=s))[0] for s in range(20)} == {1}


def test_top_p_zero_and_top_k_one_take_the_top_token() -> None:
    for i in range(30):
        assert sample_one([0.0, 0.4, 0.3], spec_of(seed=i, top_p=0.0))[0] == 1
        assert sample_one([0.0, 0.4, 0.4], spec_of(seed=i, top_k=1))[0] == 1
        assert sample_one([0.0, 0.4, 0.3], spec_of(seed=i, min_p=1.0))[0] == 1


def test_top_p_counts_the_mass_that_top_k_left() -> None:
    """Of 4:3:2:1, top_k 2 leaves 4/7 and 3/7; the first alone then has more than 0.5."""
    row = [math.log(w) for w in (4, 3, 2, 1)]
    together = {sample_one(row, spec_of(seed=i, top_k=2, top_p=0.5))[0] for i in range(40)}
    top_p_alone = {sample_one(row, spec_of(seed=i, top_p=0.5))[0] for i in range(40)}
    assert together == {0}
    assert top_p_alone == {0, 1}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("temperature", [1e-300, 1e-5, 2.0])
def test_extreme_temperatures(temperature: float) -> None:
    tokens = {sample_one([30.0, -30.0, 29.0], spec_of(seed=i, temperature=temperature))[0] for i in range(50)}
    assert tokens == ({0, 2} if temperature == 2.0 else {0})


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bias_of_a_hundred_forces_and_bans(temperature: float) -> None:
    row = [5.0, 3.0, 1.0]
    forced = spec_of(temperature=temperature, logit_bias={2: 100.0}, logprobs=0)
    token, logprobs = sample_one(row, forced)
    assert token == 2
    # the logprob stays the model's own: 1 - log(e^5 + e^3 + e^1)
    assert logprobs is not None and logprobs.logprob == pytest.approx(-4.142931628, abs=1e-8)
    assert sample_one(row, spec_of(temperature=temperature, logit_bias={0: -100.0, 1: -100.0}))[0] == 2


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, 2),
        ({"min_tokens": 3}, 1),
        ({"min_tokens": 2}, 2),
        ({"min_tokens": 3, "ignore_eos": True}, 2),
        ({"min_tokens": 3, "stop_token_ids": (1,)}, 0),
        ({"min_tokens": 3, "ignore_eos": True, "stop_token_ids": (2,)}, 1),
        ({"min_tokens": 3, "logit_bias": {2: 100.0}}, 1),
    ],
)
def test_min_tokens_bans_what_would_end_the_sequence(params: dict, expected: int) -> None:
    spec = spec_of(output=(0, 0), temperature=0.0, **params)
    assert sample_one([1.0, 2.0, 3.0], spec)[0] == expected


def test_a_ban_of_everything_gives_no_token() -> None:
    spec = spec_of(min_tokens=1, stop_token_ids=(0, 1), logprobs=2)
    assert sample_one([1.0, 2.0, 3.0], spec) == (NO_TOKEN, None)


def test_end_tokens_beyond_the_vocabulary_do_no_harm() -> None:
    spec = spec_of(temperature=0.0, min_tokens=5)
    assert sample_one([1.0, 2.0, 3.0], spec, eos=(2, 3, 9000))[0] == 1


def test_output_penalties_do_not_touch_the_prompt() -> None:
    row = [3.0, 2.5, 0.0]
    penalty = {"temperature": 0.0, "presence_penalty": 1.0}
    assert sample_one(row, spec_of(prompt=(0, 0), **penalty))[0] == 0
    assert sample_one(row, spec_of(prompt=(0, 0), output=(0,), **penalty))[0] == 1
    frequency = {"temperature": 0.0, "frequency_penalty": 0.3}
    assert sample_one(row, spec_of(output=(0,), **frequency))[0] == 0
    assert sample_one(row, spec_of(output=(0, 0), **frequency))[0] == 1
    assert sample_one(row, spec_of(prompt=(0,), temperature=0.0, repetition_penalty=1.3))[0] == 1

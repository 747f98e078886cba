"""Native attention against float64, on every instruction set this machine has."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from tests.kernels.attention_case import FORMATS, INSTRUCTION_SETS, Case, Storage
from tests.kernels.pairwise import pairwise

EACH_SET = pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
BORDERS = (1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 513, 1299)
"""Lengths and windows around those of pages, tiles and pieces."""
FACTORS = {
    "batch": ("decode", "prefill", "continued", "mixed"),
    "dim": (16, 32, 64, 80, 96, 128, 256),
    "kv": FORMATS,
    "io": (torch.float32, torch.bfloat16, torch.float16),
    "page_size": (1, 7, 8, 16, 32),
    "group": tuple(range(1, 17)),
    "kv_heads": (1, 2, 3),
    "window": (0, 0, 5, 40, 100, 300, 5000),
    "softcap": (0.0, 20.0),
    "scale": (None, 0.3),
    "threads": (1, 2, 3),
}


def random_batch(kind: str, rng: random.Random) -> tuple[tuple[int, int], ...]:
    decode = [(1, rng.randrange(100)), (1, rng.randrange(1300)), (1, rng.randrange(1300))]
    prefill = [(rng.randint(2, 40), 0)]
    continued = [(rng.randint(2, 20), rng.randrange(1, 1200))]
    parts = {"decode": decode, "prefill": prefill, "continued": continued, "mixed": decode[1:] + continued}
    return tuple(parts[kind])


def pairwise_cases() -> list[tuple[Case, int]]:
    cases = []
    for seed, values in enumerate(pairwise(FACTORS)):
        batch, window, threads = (values.pop(name) for name in ("batch", "window", "threads"))
        sequences = random_batch(batch, random.Random(seed))
        cases.append((Case(sequences=sequences, windows=(window,), seed=seed, **values), threads))
    return cases


@EACH_SET
@pytest.mark.parametrize(("case", "threads"), pairwise_cases())
def test_all_pairs_of_settings(case: Case, threads: int, instruction_set: str) -> None:
    Storage(case, instruction_set, threads).check()


@EACH_SET
@pytest.mark.parametrize("page_size", [1, 7, 16])
@pytest.mark.parametrize("kv", FORMATS, ids=str)
def test_lengths_around_borders(kv: torch.dtype, page_size: int, instruction_set: str) -> None:
    decode = tuple((1, length - 1) for length in BORDERS)
    Storage(Case(sequences=decode, kv=kv, page_size=page_size, windows=(0,)), instruction_set).check()


@EACH_SET
@pytest.mark.parametrize("sequences", [((1, 1299), (1, 64), (1, 0)), ((70, 0), (30, 600))], ids=str)
def test_layers_with_windows_around_borders(
    sequences: tuple[tuple[int, int], ...], instruction_set: str
) -> None:
    Storage(Case(sequences=sequences, group=2, windows=(*BORDERS, 0)), instruction_set).check()


@EACH_SET
@pytest.mark.parametrize("group", [33, 64])
def test_large_groups(group: int, instruction_set: str) -> None:
    case = Case(sequences=((1, 300), (3, 40)), kv_heads=1, group=group, windows=(0,))
    Storage(case, instruction_set).check()


@EACH_SET
@pytest.mark.parametrize("kv", FORMATS, ids=str)
@pytest.mark.parametrize("magnitude", [5, 40])
def test_scores_of_hundreds_do_not_overflow(magnitude: int, kv: torch.dtype, instruction_set: str) -> None:
    storage = Storage(Case(sequences=((1, 600), (30, 40)), kv=kv, magnitude=magnitude), instruction_set)
    scores = storage.queries[0][0, 0] @ storage.kv[0][0][:, 0, 0].T * storage.case.factor
    assert scores.abs().max() > magnitude**2
    storage.check()


@EACH_SET
@pytest.mark.parametrize("sequences", [((1, 600),), ((40, 90),)], ids=str)
@pytest.mark.parametrize("equal", ["keys", "queries"])
def test_equal_scores_give_the_mean(
    equal: str, sequences: tuple[tuple[int, int], ...], instruction_set: str
) -> None:
    storage = Storage(Case(sequences=sequences, group=1, windows=(0,)), instruction_set)
    if equal == "keys":
        storage.kv[0][0][:, 0] = 0.5
        storage.fill()
    else:
        storage.queries[0].zero_()
    values = storage.kv[0][0][:, 1].double()
    counts = torch.arange(1, len(values) + 1)[:, None, None]
    means = (values.cumsum(0) / counts)[-storage.case.rows :]
    torch.testing.assert_close(storage.attend().double(), means, atol=1e-6, rtol=0)


@EACH_SET
@pytest.mark.parametrize("softcap", [1.0, 30.0, 50.0])
def test_soft_cap_of_large_scores(softcap: float, instruction_set: str) -> None:
    case = Case(sequences=((1, 300), (20, 50)), softcap=softcap, magnitude=8, windows=(0,))
    Storage(case, instruction_set).check()


@EACH_SET
def test_the_reference_notices_a_lost_key(instruction_set: str) -> None:
    """Or the bounds above would be worth nothing."""
    storage = Storage(Case(sequences=((1, 1299),), windows=(0,)), instruction_set)
    shorter = Storage(replace(storage.case, windows=(1299,)), instruction_set)
    expected, error = storage.expected(0)
    assert ((shorter.attend().double() - expected).abs() > error).any()

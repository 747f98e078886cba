"""What the planner chooses in plain cases, and what it says about it."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from scheduler.overlap_planner import PlanLimits, choose
from scheduler.plan import Overlap, PlanMode
from scheduler.prediction import predict
from scheduler.snapshot import HostSequence, PrefillWork
from scheduler.types import SequenceId
from scheduler.wave_assignment import assign_waves
from tests.builders.costs import A10_8B, EMULATED, T4_7B
from tests.unit.test_walk import snapshot

SLOW_CPU = replace(EMULATED, host_rate=12e6)
FREE = PlanLimits()


def gain(overlap: Overlap) -> float:
    """Over accelerator-only."""
    return overlap.rate / next(rate for name, rate in overlap.rejected if name == PlanMode.ACCELERATOR_ONLY)


@pytest.mark.parametrize(
    ("costs", "device", "host", "tokens", "least"),
    [
        (SLOW_CPU, 4, 28, 256, 3.9),
        (SLOW_CPU, 4, 28, 1000, 2.6),
        (SLOW_CPU, 4, 28, 2000, 2.0),
        (SLOW_CPU, 4, 28, 4000, 1.55),
        (SLOW_CPU, 4, 28, 8000, 1.3),
        (T4_7B, 3, 41, 700, 2.4),
        (A10_8B, 38, 121, 1000, 1.18),
        (replace(A10_8B, host_rate=100e9 / 4096), 38, 121, 1000, 1.4),
        (A10_8B, 9, 30, 4000, 1.2),
    ],
)
def test_the_theory_page_s_cases_gain_what_it_estimates(costs, device, host, tokens, least):
    state = snapshot(device, host, tokens)
    chosen = choose(state, costs, FREE)
    assert gain(chosen) > least
    published = (PlanMode.ASYNC_OVERLAP, PlanMode.ASYMMETRIC_PIPELINE)
    forced = [choose(state, costs, PlanLimits(mode=mode)).rate for mode in published]
    assert chosen.rate > 0.97 * max(forced)


def test_long_contexts_take_few_passes_and_beat_both_published_modes():
    chosen = choose(snapshot(4, 28, 4000), SLOW_CPU, FREE)
    assert chosen.mode is PlanMode.CATCH_UP
    assert 1 <= chosen.passes <= 10
    named = dict(chosen.rejected)
    published = [rate for name, rate in named.items() if name.startswith(("async", "asymmetric"))]
    assert len(published) == 2
    assert chosen.rate > 1.15 * max(published)


def test_without_host_rows_there_is_nothing_to_choose():
    for mode in (None, *PlanMode):
        chosen = choose(snapshot(4, 0, 256), EMULATED, PlanLimits(mode=mode))
        assert (chosen.mode, chosen.reason, chosen.rejected) == (
            PlanMode.ACCELERATOR_ONLY,
            "no host rows",
            (),
        )
        assert chosen.seconds == pytest.approx(30 * 1.00512e-3 + 0.7e-3)
        assert chosen.rate == pytest.approx(4 / chosen.seconds)


def test_a_gain_within_the_model_s_error_is_none():
    state = snapshot(200, 2, 256)
    chosen = choose(state, EMULATED, PlanLimits(margin=0.03))
    assert chosen.mode is PlanMode.ACCELERATOR_ONLY
    assert "error" in chosen.reason
    assert choose(state, EMULATED, PlanLimits(margin=0.0)).mode is not PlanMode.ACCELERATOR_ONLY


def test_host_rows_don_t_pause_forever():
    state = snapshot(200, 2, 256)
    limits = PlanLimits(patience=3)
    modes = [
        choose(msgspec.structs.replace(state, paused=paused), EMULATED, limits).mode for paused in range(5)
    ]
    assert [mode is PlanMode.ACCELERATOR_ONLY for mode in modes] == [True, True, True, False, False]


def test_nor_do_some_of_them():
    """Lock-step with a part of the rows is fastest here; all the same everyone has a turn."""
    state = snapshot(4, 28, 1000)
    chosen = choose(state, SLOW_CPU, FREE)
    assert chosen.mode is PlanMode.ASYMMETRIC_PIPELINE
    assert chosen.host_rows is not None
    later = choose(msgspec.structs.replace(state, paused=8), SLOW_CPU, FREE)
    assert later.host_rows is None


def test_the_reason_has_the_figures():
    chosen = choose(snapshot(4, 28, 4000), SLOW_CPU, FREE)
    assert f"{chosen.rate:.0f} tokens/s against" in chosen.reason
    assert "catch-up with 1 wave" in chosen.reason
    asked = choose(snapshot(4, 28, 4000), SLOW_CPU, PlanLimits(mode=PlanMode.ASYNC_OVERLAP))
    assert asked.reason.startswith("async-overlap is asked for")


def test_device_rows_limit_bounds_the_iteration():
    state = snapshot(4, 28, 256)
    free = choose(state, SLOW_CPU, FREE)
    bounded = choose(state, SLOW_CPU, PlanLimits(tpot=0.04))
    assert predict(state, SLOW_CPU, free).seconds > 0.05
    assert 0.036 < predict(state, SLOW_CPU, bounded).seconds <= 0.04
    assert bounded.rate < free.rate


def test_host_rows_limit_asks_for_passes():
    """Rides alone are nearly as good here: a wave's pass costs almost as much as it brings."""
    state = snapshot(60, 12, 4000)
    free = choose(state, SLOW_CPU, FREE)
    assert predict(state, SLOW_CPU, free).host_seconds > 0.5
    bounded = choose(state, SLOW_CPU, PlanLimits(host_tpot=0.3))
    assert predict(state, SLOW_CPU, bounded).host_seconds <= 0.3


def test_limits_that_nothing_keeps_are_kept_as_nearly_as_can_be():
    state = snapshot(4, 28, 4000)
    chosen = choose(state, SLOW_CPU, PlanLimits(host_tpot=0.05))
    assert "closest" in chosen.reason
    fastest = predict(state, SLOW_CPU, chosen).host_seconds
    assert fastest < predict(state, SLOW_CPU, choose(state, SLOW_CPU, FREE)).host_seconds


def test_prompts_are_cut_for_limits_only():
    costs = replace(EMULATED, row=20e-6)
    state = snapshot(4, 28, 256, prefills=(PrefillWork(2000, 0, False),))
    assert choose(state, costs, FREE).prefill_tokens is None
    cut = choose(state, costs, PlanLimits(tpot=0.1))
    assert cut.prefill_tokens == 508 // 4
    assert predict(state, costs, cut).seconds <= 0.1


def test_what_ran_before_stays_while_it_is_about_as_good():
    state = snapshot(4, 28, 4000)
    best = choose(state, SLOW_CPU, FREE)
    near = Overlap(mode=best.mode, waves=2, passes=10)
    kept = choose(msgspec.structs.replace(state, previous=near), SLOW_CPU, FREE)
    assert (kept.waves, kept.passes) == (2, 10)
    assert kept.rate > best.rate / 1.02
    far = Overlap(mode=best.mode, waves=1, passes=1)
    left = choose(msgspec.structs.replace(state, previous=far), SLOW_CPU, FREE)
    assert (left.waves, left.passes) == (best.waves, best.passes)


def test_passes_of_an_iteration_without_a_main_batch_are_not_kept_beside_one():
    before = choose(snapshot(0, 28, 8000), SLOW_CPU, PlanLimits(mode=PlanMode.ASYNC_OVERLAP))
    assert before.passes > 0
    for mode in (None, PlanMode.ASYNC_OVERLAP):
        after = choose(snapshot(4, 28, 8000, previous=before), SLOW_CPU, PlanLimits(mode=mode))
        assert after.passes == 0 or after.mode is not PlanMode.ASYNC_OVERLAP


@pytest.mark.parametrize(
    "mode", [PlanMode.ASYNC_OVERLAP, PlanMode.CATCH_UP, PlanMode.ASYMMETRIC_PIPELINE, None]
)
def test_without_a_main_batch_every_mode_goes_on(mode):
    chosen = choose(snapshot(0, 5, 1000), EMULATED, PlanLimits(mode=mode))
    assert chosen.mode is (mode or PlanMode.ASYNC_OVERLAP)
    assert chosen.passes == chosen.waves * 31
    assert chosen.rate > 0


def test_asymmetric_pipelining_takes_whom_the_cpu_can_follow():
    few = choose(snapshot(4, 28, 4000), SLOW_CPU, PlanLimits(mode=PlanMode.ASYMMETRIC_PIPELINE))
    assert (few.waves, few.passes) == (2, 31)
    assert few.host_rows is not None and 3 <= few.host_rows <= 6
    every = choose(snapshot(4, 28, 100), EMULATED, PlanLimits(mode=PlanMode.ASYMMETRIC_PIPELINE))
    assert every.host_rows is None


def rows(*tokens_and_waves: tuple[int, int | None]) -> list[HostSequence]:
    return [HostSequence(SequenceId(i), tokens, wave) for i, (tokens, wave) in enumerate(tokens_and_waves)]


TWO = Overlap(mode=PlanMode.CATCH_UP, waves=2, passes=4)


def test_rows_stay_in_their_wave_and_new_ones_go_to_the_lightest():
    host = rows((100, 0), (120, 1), (50, None), (60, None))
    assert assign_waves(host, TWO) == {0: 0, 1: 1, 2: 0, 3: 1}


def test_few_rows_move_and_only_between_uneven_waves():
    uneven = rows(*[(100, 0)] * 6, *[(100, 1)] * 3)
    assert assign_waves(uneven, TWO) == {row.sequence_id: row.wave for row in uneven}
    lopsided = rows(*[(100, 0)] * 7, *[(100, 1)] * 2)
    moved = [row for row in lopsided if assign_waves(lopsided, TWO)[row.sequence_id] != row.wave]
    assert len(moved) == 1


def test_waves_that_are_gone_are_dissolved_and_new_ones_filled():
    host = rows(*[(100, wave) for wave in (0, 1, 2, 3)])
    assert sorted(assign_waves(host, TWO).values()) == [0, 0, 1, 1]
    one = rows(*[(100, 0)] * 6)
    assert sorted(assign_waves(one, TWO).values()) == [0, 0, 0, 0, 1, 1]


def test_those_that_came_last_don_t_take_part():
    host = rows((100, None), (100, 1), (100, 1), (100, 0))
    some = Overlap(mode=PlanMode.ASYMMETRIC_PIPELINE, waves=2, passes=31, host_rows=2)
    assert assign_waves(host, some) == {0: 0, 1: 1, 2: None, 3: None}


def test_those_that_pause_keep_their_wave():
    host = rows((100, 3), (100, None))
    assert assign_waves(host, Overlap(mode=PlanMode.ACCELERATOR_ONLY)) == {0: 3, 1: None}


def test_one_row_that_outweighs_the_rest_is_left_alone():
    assert assign_waves(rows((9000, 0), (10, 1)), TWO) == {0: 0, 1: 1}
    assert assign_waves(rows((9000, None)), TWO) == {0: 0}

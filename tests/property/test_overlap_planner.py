"""Laws of the overlap planner, over random machines and states."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from scheduler.overlap_planner import PlanLimits, choose
from scheduler.plan import Overlap, PlanMode
from scheduler.prediction import HostGroup, predict, predict_waves
from scheduler.snapshot import HostSequence, PrefillWork, Snapshot
from scheduler.types import SequenceId
from scheduler.unit_times import UnitTimes, main_batch
from scheduler.wave_assignment import assign_waves
from tests.builders.costs import AnalyticCosts

LAW = settings(max_examples=60, deadline=None)


def log_floats(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(0, 1).map(lambda x: least * (most / least) ** x)


machines = st.builds(
    AnalyticCosts,
    layers=st.integers(2, 40),
    launch=log_floats(1e-6, 50e-6),
    overhead=log_floats(10e-6, 2e-3),
    linear=log_floats(0.1e-3, 5e-3),
    row=st.one_of(st.just(0.0), log_floats(1e-6, 1e-3)),
    last=log_floats(0.1e-3, 10e-3),
    device_rate=log_floats(10e6, 1e9),
    host_rate=log_floats(0.5e6, 200e6),
    host_latency=log_floats(1e-6, 100e-6),
    bus_rate=log_floats(2e9, 50e9),
    bus_latency=log_floats(1e-6, 100e-6),
)
hosts = st.lists(
    st.tuples(st.integers(1, 8000), st.one_of(st.none(), st.integers(0, 5))), min_size=1, max_size=40
).map(
    lambda rows: tuple(
        HostSequence(SequenceId(7 * i % 41), tokens, wave) for i, (tokens, wave) in enumerate(rows)
    )
)
overlaps = st.builds(
    Overlap,
    mode=st.sampled_from(PlanMode),
    waves=st.integers(1, 6),
    passes=st.integers(0, 60),
    host_rows=st.one_of(st.none(), st.integers(0, 40)),
)


@st.composite
def snapshots(draw: st.DrawFn, least_device_rows: int = 0) -> Snapshot:
    device = draw(st.integers(least_device_rows, 64))
    prefills = st.builds(PrefillWork, st.integers(1, 3000), st.integers(0, 3000), st.booleans())
    return Snapshot(
        device_rows=device,
        device_tokens=device * draw(st.integers(1, 8000)),
        host=draw(hosts),
        waves=(),
        prefills=tuple(draw(st.lists(prefills, max_size=3))),
        max_batch_tokens=draw(st.integers(max(device, 1), 600)),
        paused=draw(st.integers(0, 12)),
        previous=draw(st.one_of(st.none(), overlaps)),
    )


limits_of = st.builds(
    PlanLimits,
    tpot=st.one_of(st.none(), log_floats(5e-3, 1.0)),
    host_tpot=st.one_of(st.none(), log_floats(20e-3, 5.0)),
    margin=st.sampled_from([0.0, 0.03, 0.1]),
    patience=st.integers(1, 10),
    mode=st.one_of(st.none(), st.sampled_from(PlanMode)),
)


@LAW
@given(snapshots(), machines)
def test_never_below_accelerator_only(state, costs):
    chosen = choose(msgspec.structs.replace(state, paused=0), costs, PlanLimits())
    alone = predict(state, costs, Overlap(mode=PlanMode.ACCELERATOR_ONLY))
    assert chosen.rate >= alone.rate
    if chosen.mode is not PlanMode.ACCELERATOR_ONLY:
        assert chosen.rate > alone.rate * (1.03 / 1.02)


@LAW
@given(snapshots(), machines, limits_of)
def test_the_choice_is_within_bounds(state, costs, limits):
    chosen = choose(state, costs, limits)
    assert chosen.waves <= len(state.host)
    assert 0 <= chosen.passes <= chosen.waves * (costs.layers + 1) + costs.layers
    assert chosen.host_rows is None or 1 <= chosen.host_rows < len(state.host)
    assert chosen.prefill_tokens is None or (
        0 <= chosen.prefill_tokens <= max(0, state.max_batch_tokens - state.device_rows)
    )
    assert chosen.seconds > 0
    assert chosen.reason
    if chosen.mode is PlanMode.ACCELERATOR_ONLY:
        assert chosen.passes == 0
    if chosen.mode is PlanMode.ASYNC_OVERLAP and (state.device_rows or state.prefills):
        assert chosen.passes == 0
    if chosen.mode is PlanMode.CATCH_UP:
        assert chosen.passes >= 1


@LAW
@given(snapshots(), machines, limits_of, st.randoms(use_true_random=False))
def test_order_doesn_t_matter(state, costs, limits, chance: random.Random):
    shuffled = list(state.host)
    chance.shuffle(shuffled)
    chosen = choose(state, costs, limits)
    assert choose(msgspec.structs.replace(state, host=tuple(shuffled)), costs, limits) == chosen
    assert assign_waves(shuffled, chosen) == assign_waves(state.host, chosen)


@LAW
@given(snapshots(), machines, limits_of, st.sampled_from(PlanMode))
def test_what_is_asked_for_is_given(state, costs, limits, mode):
    assert choose(state, costs, msgspec.structs.replace(limits, mode=mode)).mode is mode


@LAW
@given(snapshots(), machines, limits_of, st.integers(0, 50))
def test_nobody_pauses_for_longer_than_patience_lasts(state, costs, limits, longer):
    waited = msgspec.structs.replace(state, paused=limits.patience + longer)
    chosen = choose(waited, costs, msgspec.structs.replace(limits, mode=None))
    assert chosen.mode is not PlanMode.ACCELERATOR_ONLY
    assert chosen.host_rows is None


@LAW
@given(snapshots(least_device_rows=1), machines)
def test_a_cpu_that_costs_nothing_takes_every_row(state, costs):
    free = replace(costs, row=0.0, host_rate=1e18, host_latency=0.0, bus_rate=1e18, bus_latency=0.0)
    chosen = choose(state, free, PlanLimits(margin=0.0))
    assert chosen.mode is not PlanMode.ACCELERATOR_ONLY
    assert chosen.host_rows is None


@LAW
@given(snapshots(least_device_rows=1), machines, st.integers(1, 4), st.integers(0, 100))
def test_a_main_batch_never_waits(state, costs, waves, passes):
    overlap = Overlap(mode=PlanMode.CATCH_UP, waves=min(waves, len(state.host)), passes=passes)
    prediction = predict(state, costs, overlap)
    assert prediction.accelerator_idle == 0.0
    assert prediction.passes <= passes
    assert prediction.host_busy <= 1.0
    assert prediction.rate > 0
    rows = -(-len(state.host) // overlap.waves)
    alone = predict(state, costs, Overlap(mode=PlanMode.ACCELERATOR_ONLY))
    most = alone.seconds + prediction.passes * max(
        costs.dense(rows), costs.entry(rows), costs.exit(rows) + costs.head(rows)
    )
    riding = (costs.layers + 1) * costs.row * len(state.host)
    assert alone.seconds * (1 - 1e-9) <= prediction.seconds <= (most + riding) * (1 + 1e-9)


@LAW
@given(snapshots(), machines, st.integers(12, 48), log_floats(1.5, 100.0))
def test_a_faster_cpu_does_no_harm(state, costs, layers, factor):
    """But for the grain of things: whole layers and whole passes in an iteration.

    Among plans that pause nobody: those with a part of the rows are only looked for at the largest part.
    """
    state = msgspec.structs.replace(state, previous=None, paused=8)
    slower = replace(costs, layers=layers)
    faster = replace(slower, host_rate=costs.host_rate * factor, host_latency=costs.host_latency / factor)
    before, after = (choose(state, each, PlanLimits()).rate for each in (slower, faster))
    assert after >= 0.93 * before


@LAW
@given(hosts, overlaps)
def test_every_host_row_is_in_one_wave_or_in_none(host, overlap):
    waves = assign_waves(host, overlap)
    assert set(waves) == {row.sequence_id for row in host}
    if overlap.mode is PlanMode.ACCELERATOR_ONLY:
        return
    taking_part = len(host) if overlap.host_rows is None else min(overlap.host_rows, len(host))
    assert sum(wave is not None for wave in waves.values()) == taking_part
    assert all(wave is None or 0 <= wave < overlap.waves for wave in waves.values())
    again = [HostSequence(row.sequence_id, row.tokens, waves[row.sequence_id]) for row in host]
    assert assign_waves(again, overlap) == waves, "the second time nothing moves"


@LAW
@given(
    layers=st.integers(12, 48),
    linear=log_floats(0.3e-3, 3e-3),
    attention=st.floats(0.0, 1.0),
    slow=st.floats(1.2, 4.0),
    host=st.integers(4, 64),
)
def test_the_walk_agrees_with_the_closed_form_where_the_cpu_is_slow(layers, linear, attention, slow, host):
    """One wave, whose attention takes several layers' time: (1 + e) * (c * t + latency) = A.

    Results are looked at between layers only, so that a turn of n layers may take n + 1: that is a pass less,
    or a part of one, once n is above the root of the number of layers. A wave may also take a pass where
    it could have waited for a ride: what counts is how many layers it advances.
    """
    costs = AnalyticCosts(layers=layers, linear=linear, last=0.0, overhead=0.0, device_rate=1e9)
    device_tokens = int(attention * linear * costs.device_rate)
    step = linear + device_tokens / costs.device_rate
    tokens = int(slow * layers**0.5 * step * costs.host_rate / host)
    state = Snapshot(
        device_rows=8,
        device_tokens=device_tokens,
        host=tuple(HostSequence(SequenceId(row), tokens, None) for row in range(host)),
        waves=(),
        prefills=(),
        max_batch_tokens=64,
        paused=0,
        previous=None,
    )
    around = (
        costs.launch + costs.download(host * costs.row_bytes_down) + costs.upload(host * costs.row_bytes_up)
    )
    turn = costs.host_attention(host, host * tokens) + around
    closed = max(layers * step / turn - 1, 0.0)
    times = UnitTimes(costs, main_batch(state, 0, costs))
    for budget in (math.ceil(closed), layers + 1):
        walked = predict_waves(8, times, HostGroup(host, host * tokens), 1, budget)
        assert walked.layers == pytest.approx(1 + closed, abs=1.0)

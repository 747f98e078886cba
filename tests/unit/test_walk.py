"""The walk against one that takes every step by itself, and rates counted briefly against long averages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.plan import Overlap, PlanMode, WaveProgress
from scheduler.prediction import HostGroup, predict, predict_next, predict_waves
from scheduler.snapshot import HostSequence, PrefillWork, Snapshot
from scheduler.types import SequenceId
from scheduler.unit_times import UnitTimes, main_batch
from scheduler.walk import ALONE_SECONDS, Walk
from tests.builders.costs import A10_8B, EMULATED, T4_7B, AnalyticCosts


def snapshot(device: int, host: int, tokens: int, **changes: object) -> Snapshot:
    fields: dict[str, object] = {
        "device_rows": device,
        "device_tokens": device * tokens,
        "host": tuple(HostSequence(SequenceId(row), tokens, None) for row in range(host)),
        "waves": (),
        "prefills": (),
        "max_batch_tokens": 512,
        "paused": 0,
        "previous": None,
    }
    return Snapshot(**(fields | changes))


def unit_times(costs: AnalyticCosts, device: int, tokens: int) -> UnitTimes:
    return UnitTimes(costs, main_batch(snapshot(device, 0, tokens), 0, costs))


class StepByStep:
    """The executor's rules in their plainest form: every unit, every wave, each time."""

    def __init__(
        self, costs: AnalyticCosts, device: int, tokens: int, waves: list[tuple[int, int]], units: list[int]
    ):
        self.costs, self.device, self.waves = costs, device, waves
        self.attention = costs.device_decode(device, device * tokens)
        self.unit, self.ready = list(units), [0.0] * len(waves)
        self.now = self.cpu_free = 0.0
        self.done, self.passes, self.late = [0] * len(waves), 0, 0

    def seconds(self, unit: int, rows: int) -> float:
        if unit == 0:
            return self.costs.entry(rows)
        if unit < self.costs.layers:
            return self.costs.dense(rows)
        return self.costs.exit(rows) + self.costs.head(rows)

    def take(self, wave: int, unit: int) -> None:
        rows, tokens = self.waves[wave]
        self.done[wave] += 1
        if unit == self.costs.layers:
            self.unit[wave], self.ready[wave] = 0, self.now
            return
        begin = max(self.cpu_free, self.now + self.costs.download(rows * self.costs.row_bytes_down))
        self.cpu_free = begin + self.costs.host_attention(rows, tokens)
        self.unit[wave] = unit + 1
        self.ready[wave] = self.cpu_free + self.costs.upload(rows * self.costs.row_bytes_up)

    def iterate(self, budget: int) -> None:
        layers = self.costs.layers
        sampled: set[int] = set()
        passes = 0
        for unit in range(layers + 1):
            while unit and passes < min(budget, -(-budget * unit // layers) + 1):
                look = self.now - self.costs.launch
                ready = [
                    wave
                    for wave in range(len(self.waves))
                    if self.ready[wave] <= look
                    and self.unit[wave] != unit
                    and not (self.unit[wave] == layers and wave in sampled)
                ]
                if not ready:
                    break
                wave = min(ready, key=lambda wave: self.ready[wave])
                taken = self.unit[wave]
                self.now += self.seconds(taken, self.waves[wave][0])
                if taken == layers:
                    sampled.add(wave)
                self.take(wave, taken)
                self.passes += 1
                passes += 1
            look = self.now - (self.costs.launch if unit else 0.0)
            riders = [
                wave
                for wave in range(len(self.waves))
                if self.unit[wave] == unit
                and self.ready[wave] <= look
                and not (unit == layers and wave in sampled)
            ]
            self.now += self.seconds(unit, self.device + sum(self.waves[wave][0] for wave in riders))
            for wave in riders:
                self.take(wave, unit)
            if unit < layers:
                self.now += self.attention
        self.now += self.costs.overhead


@pytest.mark.parametrize("budget", [0, 1, 3, 8, 31, 62])
@pytest.mark.parametrize("units", [[0], [7], [0, 15], [20, 3], [0, 0], [1, 8, 15, 22], [0, 0, 30, 30]])
@pytest.mark.parametrize(
    ("costs", "tokens"),
    [
        (EMULATED, 256),
        (EMULATED, 4000),
        (replace(EMULATED, row=0.05e-3), 1000),
        (replace(EMULATED, host_rate=1e15), 300),
    ],
    ids=["fast", "slow", "compute-bound", "at once"],
)
def test_jumping_from_event_to_event_changes_nothing(costs, tokens, units, budget):
    rows = [9 + 2 * wave for wave in range(len(units))]
    waves = [(count, count * tokens) for count in rows]
    plain = StepByStep(costs, 4, tokens, waves, units)
    walk = Walk(unit_times(costs, 4, tokens), rows, [total for _, total in waves])
    walk.unit = list(units)
    for _ in range(12):
        plain.iterate(budget)
        walk.iterate(budget)
        assert walk.done == plain.done
        assert walk.unit == plain.unit
        assert walk.passes == plain.passes
        assert walk.now == pytest.approx(plain.now)
        assert walk.ready == pytest.approx(plain.ready)
    assert walk.idle == 0.0


CASES = [
    pytest.param(replace(EMULATED, host_rate=12e6), 4, 28, 256, id="small accelerator, 256"),
    pytest.param(replace(EMULATED, host_rate=12e6), 4, 28, 1000, id="small accelerator, 1000"),
    pytest.param(replace(EMULATED, host_rate=12e6), 4, 28, 4000, id="small accelerator, 4000"),
    pytest.param(replace(EMULATED, host_rate=12e6), 4, 28, 8000, id="small accelerator, 8000"),
    pytest.param(T4_7B, 3, 41, 700, id="T4"),
    pytest.param(A10_8B, 38, 121, 1000, id="A10, 1000"),
    pytest.param(replace(A10_8B, host_rate=100e9 / 4096), 38, 121, 1000, id="A10, fast CPU"),
    pytest.param(A10_8B, 9, 30, 4000, id="A10, 4000"),
]


def long_average(
    costs: AnalyticCosts, device: int, group: HostGroup, tokens: int, waves: int, passes: int
) -> float:
    """Tokens a second over 60 iterations, after 60 others, every unit at its own cost."""
    rows = [-(-group.rows // waves)] * waves
    walk = Walk(unit_times(costs, device, tokens), rows, [group.tokens // waves] * waves)
    walk.stagger()
    for _ in range(60):
        walk.iterate(passes)
    begun, units = walk.now, sum(walk.done)
    for _ in range(60):
        walk.iterate(passes)
    host = (sum(walk.done) - units) / waves * group.rows / (costs.layers + 1)
    return (60 * device + host) / (walk.now - begun)


@pytest.mark.parametrize(
    ("waves", "passes"), [(1, 0), (2, 0), (1, 1), (1, 2), (1, 4), (1, 8), (2, 4), (2, 8)]
)
@pytest.mark.parametrize(("costs", "device", "host", "tokens"), CASES[1:])
def test_a_brief_count_is_near_the_long_average(costs, device, host, tokens, waves, passes):
    group = HostGroup(host, host * tokens)
    brief = predict_waves(device, unit_times(costs, device, tokens), group, waves, passes)
    assert brief.rate == pytest.approx(long_average(costs, device, group, tokens, waves, passes), rel=0.06)


@pytest.mark.parametrize("passes", [0, 2, 4, 8, 16, 31])
def test_so_it_is_with_one_wave_that_is_hardly_ever_late(passes):
    """(Two such waves with a small budget may meet, part and meet again.)"""
    costs, device, host, tokens = CASES[0].values
    group = HostGroup(host, host * tokens)
    brief = predict_waves(device, unit_times(costs, device, tokens), group, 1, passes)
    assert brief.rate == pytest.approx(long_average(costs, device, group, tokens, 1, passes), rel=0.03)


@pytest.mark.parametrize("waves", [1, 2])
@pytest.mark.parametrize(("costs", "device", "host", "tokens"), CASES[1:])
def test_so_it_is_with_all_the_passes_the_cpu_can_follow(costs, device, host, tokens, waves):
    group = HostGroup(host, host * tokens)
    passes = waves * (costs.layers + 1)
    brief = predict_waves(device, unit_times(costs, device, tokens), group, waves, passes)
    assert brief.rate == pytest.approx(long_average(costs, device, group, tokens, waves, passes), rel=0.03)
    again = predict_waves(device, unit_times(costs, device, tokens), group, waves, max(1, brief.most_passes))
    assert again.rate == pytest.approx(brief.rate, rel=0.01)


def test_a_slow_wave_rides_once_an_iteration_for_nothing():
    state = snapshot(4, 28, 4000)
    riding = predict(state, EMULATED, Overlap(mode=PlanMode.ASYNC_OVERLAP))
    alone = predict(state, EMULATED, Overlap(mode=PlanMode.ACCELERATOR_ONLY))
    assert riding.seconds == pytest.approx(alone.seconds)
    assert riding.layers == pytest.approx(30 / 31)
    assert riding.rate == pytest.approx(alone.rate * (4 + 28 / 31) / 4)
    assert riding.host_seconds == pytest.approx(31 * riding.seconds)
    assert riding.host_busy == pytest.approx(28 * 4000 / 19e6 / riding.seconds)
    assert riding.accelerator_idle == 0.0


def test_two_waves_half_a_token_apart_keep_step_with_the_main_batch():
    fast = replace(EMULATED, host_rate=200e6)
    both = predict(snapshot(4, 16, 500), fast, Overlap(mode=PlanMode.ASYMMETRIC_PIPELINE, waves=2, passes=31))
    assert both.layers == pytest.approx(30, rel=0.03)
    assert both.seconds == pytest.approx(
        2 * predict(snapshot(4, 0, 500), fast, Overlap(mode=PlanMode.ASYNC_OVERLAP)).seconds, rel=0.05
    )


def test_without_a_main_batch_the_waves_take_turns():
    state = snapshot(0, 8, 16_000)
    one, two = (
        predict(state, EMULATED, Overlap(mode=PlanMode.CATCH_UP, waves=waves, passes=31 * waves))
        for waves in (1, 2)
    )
    assert 0.0 < two.accelerator_idle < one.accelerator_idle
    assert two.host_busy > one.host_busy
    assert max(one.seconds, two.seconds) < ALONE_SECONDS + 0.01


def test_a_prompt_lengthens_the_iteration_and_more_of_the_host_hides_behind_it():
    overlap = Overlap(mode=PlanMode.CATCH_UP, waves=1, passes=31)
    costs = replace(EMULATED, row=20e-6)
    without = predict(snapshot(4, 28, 4000), costs, overlap)
    state = snapshot(4, 28, 4000, prefills=(PrefillWork(400, 0, False), PrefillWork(400, 0, True)))
    beside = predict(state, costs, overlap)
    assert beside.seconds > 5 * without.seconds
    assert beside.layers > without.layers
    less = predict(state, costs, Overlap(mode=PlanMode.CATCH_UP, waves=1, passes=31, prefill_tokens=100))
    assert without.seconds < less.seconds < beside.seconds


def test_the_coming_iteration_is_walked_from_where_the_waves_are():
    overlap = Overlap(mode=PlanMode.CATCH_UP, waves=1, passes=1)
    state = snapshot(4, 28, 8000)
    alone = predict_next(state, Overlap(mode=PlanMode.ACCELERATOR_ONLY), unit_times(EMULATED, 4, 8000))

    def coming(cursor: int, ready: bool) -> float:
        wave = WaveProgress(wave=0, rows=28, tokens=28 * 8000, cursor=cursor, ready=ready)
        seen = snapshot(4, 28, 8000, waves=(wave,))
        return predict_next(seen, overlap, unit_times(EMULATED, 4, 8000)) - alone

    assert coming(2, ready=True) == pytest.approx(EMULATED.dense(28))
    assert coming(29, ready=True) == pytest.approx(EMULATED.exit(28) + EMULATED.head(28))
    assert coming(-1, ready=False) == pytest.approx(EMULATED.dense(28))

"""The overlaps among which the planner chooses beside one main batch, each with its prediction."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import msgspec

from scheduler.plan import Overlap, PlanMode
from scheduler.prediction import HostGroup, Prediction, predict_alone, predict_waves
from scheduler.snapshot import Snapshot
from scheduler.unit_times import UnitTimes

_WAVES = (1, 2, 4)
_WHOLE = 0.95
"""Of a token an iteration: asymmetric pipelining's rows keep up."""
_SPARE = 1
"""Passes beyond those a short walk took: waves in step need one more now and then, or they fall out of it."""
_SLACK = 1.1
"""By so much the CPU may be slower before they no longer do: once out of step, they stay so."""
_ANY = float("inf")
_GAIN = 1.02
"""More waves have to promise so much more, or the fewer win."""


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """One way to run the iteration."""

    mode: PlanMode
    waves: int
    passes: int
    host_rows: int | None
    prediction: Prediction

    @property
    def pauses(self) -> bool:
        """Whether some host rows don't advance."""
        return self.host_rows is not None or self.mode is PlanMode.ACCELERATOR_ONLY

    @property
    def name(self) -> str:
        """For people."""
        waves = "1 wave" if self.waves == 1 else f"{self.waves} waves"
        match self.mode:
            case PlanMode.ACCELERATOR_ONLY:
                return self.mode
            case PlanMode.ASYNC_OVERLAP:
                return f"{self.mode} with {waves}"
            case PlanMode.CATCH_UP:
                return f"{self.mode} with {waves} and up to {self.passes} passes"
            case PlanMode.ASYMMETRIC_PIPELINE:
                rows = "all" if self.host_rows is None else self.host_rows
                return f"{self.mode} with {rows} host rows"


class Candidates:
    """Overlaps of one snapshot and one main batch. Each method predicts as it goes."""

    def __init__(self, snapshot: Snapshot, times: UnitTimes) -> None:
        self._decodes = snapshot.device_rows
        arrived = sorted(snapshot.host, key=lambda row: row.sequence_id)
        self._tokens = list(accumulate([row.tokens for row in arrived]))
        """Which the first row, the first two, and so on attend to."""
        self._all = self._first(len(arrived))
        self._times = times
        self._units = times.layers + 1
        self._predicted: dict[tuple[int, int, int], Prediction] = {}
        """By rows, waves and passes."""

    def accelerator_only(self) -> Candidate:
        """Host rows pause."""
        alone = predict_alone(self._decodes, self._times)
        return Candidate(PlanMode.ACCELERATOR_ONLY, 1, 0, None, alone)

    def async_overlap(self) -> Iterator[Candidate]:
        """Rides only. More waves than one matter where the CPU is late, or nearly keeps up."""
        if not self._times.main.rows:
            yield from self._alone(PlanMode.ASYNC_OVERLAP)
            return
        for waves in self._waves():
            candidate = self._walk(PlanMode.ASYNC_OVERLAP, waves, 0)
            yield candidate
            once = abs(candidate.prediction.layers * self._units - self._times.layers) < 0.01
            if once and not self._fits(2 * waves):
                return

    def catch_up(self, tpot: float | None, host_tpot: float | None) -> Iterator[Candidate]:
        """Rides, and passes: as many as the CPU can follow, and fewer.

        The rate rises or falls steadily with the budget, so the ends would do; those in between are for
        limits, and for waves that happen to meet.
        """
        if not self._times.main.rows:
            yield from self._alone(PlanMode.CATCH_UP)
            return
        kept = 0.0  # the highest rate of those that keep the limits: fewer passes in more waves won't beat it
        for waves in self._waves():
            most = self._most(waves)
            useful = min(most.prediction.most_passes + _SPARE, waves * self._units)
            yield msgspec.structs.replace(most, passes=useful)
            prediction = most.prediction
            if prediction.seconds <= (tpot or _ANY) and prediction.host_seconds <= (host_tpot or _ANY):
                kept = max(kept, prediction.rate)
            beaten = prediction.rate < kept * _GAIN
            budgets = set() if beaten else self._keeping(most, tpot, host_tpot)
            for passes in sorted(budgets or _between(waves, useful)):
                if 1 <= passes < useful:
                    yield self._walk(PlanMode.CATCH_UP, waves, passes)

    def fastest_host_token(self) -> float:
        """Seconds that a host row's token takes at least, in whichever number of waves."""
        if not self._times.main.rows:
            return 0.0
        return min((self._most(waves).prediction.host_seconds for waves in self._waves()), default=0.0)

    def asymmetric_pipeline(self) -> Iterator[Candidate]:
        """Two waves, a pass in every gap, and as many host rows as then advance a token an iteration.

        Yields the largest number that the walk confirms; where it confirms none, a single row.
        """
        if not self._times.main.rows:
            yield from self._alone(PlanMode.ASYMMETRIC_PIPELINE)
            return
        rows = self._keeping_up()
        while True:
            candidate = self._walk(PlanMode.ASYMMETRIC_PIPELINE, 2, self._units, rows)
            if rows == 1 or candidate.prediction.layers >= _WHOLE * self._times.layers:
                yield candidate
                return
            rows = max(1, rows * 7 // 8)

    def again(self, previous: Overlap) -> Candidate | None:
        """The iteration before's, if it still makes sense."""
        overlapping = previous.mode in (PlanMode.ASYNC_OVERLAP, PlanMode.CATCH_UP)
        if not overlapping or not self._times.main.rows or previous.waves > self._all.rows:
            return None
        least = 1 if previous.mode is PlanMode.CATCH_UP else 0
        most = previous.waves * self._units if previous.mode is PlanMode.CATCH_UP else 0
        if not least <= previous.passes <= most:
            return None
        return self._walk(previous.mode, previous.waves, previous.passes)

    def _first(self, rows: int) -> HostGroup:
        return HostGroup(rows, self._tokens[rows - 1] if rows else 0)

    def _waves(self) -> list[int]:
        return [waves for waves in _WAVES if waves <= self._all.rows]

    def _most(self, waves: int) -> Candidate:
        """With passes as many as the CPU can follow."""
        return self._walk(PlanMode.CATCH_UP, waves, waves * self._units)

    def _walk(self, mode: PlanMode, waves: int, passes: int, rows: int | None = None) -> Candidate:
        group = self._all
        if rows is not None and rows < group.rows:
            group = self._first(rows)
        else:
            rows = None
        waves = min(waves, group.rows)
        prediction = self._predicted.get((group.rows, waves, passes))
        if prediction is None:
            prediction = predict_waves(self._decodes, self._times, group, waves, passes)
            self._predicted[group.rows, waves, passes] = prediction
        if rows is not None:
            prediction = msgspec.structs.replace(prediction, host_seconds=float("inf"))
        return Candidate(mode, waves, passes, rows, prediction)

    def _alone(self, mode: PlanMode) -> Iterator[Candidate]:
        """Without a main batch there is nothing to ride with, so every mode takes passes."""
        for waves in (2,) if mode is PlanMode.ASYMMETRIC_PIPELINE else _WAVES:
            if waves == 1 or waves <= self._all.rows or mode is PlanMode.ASYMMETRIC_PIPELINE:
                yield self._walk(mode, waves, min(waves, self._all.rows) * self._units)

    def _turn(self, group: HostGroup, waves: int) -> tuple[float, float, float]:
        """A wave's attention on the CPU, the copies and look around it, and its pass."""
        rows = -(-group.rows // waves)
        down, attention, up = self._times.host(rows, group.tokens // waves)
        return attention, down + up + self._times.launch, self._times.mean(rows)

    def _fits(self, waves: int) -> bool:
        """Whether a wave could ride in one unit after the other."""
        attention, around, _ = self._turn(self._all, waves)
        return attention + around <= self._times.main.attention

    def _keeping(self, most: Candidate, tpot: float | None, host_tpot: float | None) -> set[int]:
        """Budgets at which an iteration, or a host row's token, takes just as long as it may.

        An iteration of A seconds takes A + e * p with e passes, and its waves advance ``waves + e`` units.
        Fewer passes than ``most`` make iterations shorter and host rows slower. So they are of use where it
        breaks the one limit and the rate rises with the budget, or keeps the other and the rate falls.
        """
        waves, alone = most.waves, self._times.total
        _, _, one = self._turn(self._all, waves)
        budgets: set[int] = set()
        if tpot is None and host_tpot is None:
            return budgets
        rises = most.prediction.rate >= self._walk(PlanMode.ASYNC_OVERLAP, 1, 0).prediction.rate
        if rises and tpot is not None and one > 0 and most.prediction.seconds > tpot:
            highest = int((tpot - alone) / one)
            budgets |= {highest - 1, highest * 9 // 10}
        if not rises and host_tpot is not None and most.prediction.host_seconds <= host_tpot:
            each = self._units * waves
            denominator = host_tpot - each * one
            if denominator > 0:
                least = int((each * alone - host_tpot * waves) / denominator) + 1
                budgets |= {least, least + 1, least * 9 // 8 + 1}
        return budgets

    def _keeping_up(self) -> int:
        """Host rows whose attention is done in the gaps that two waves leave each other (at least one)."""
        gap = self._times.main.attention
        window = self._times.step
        least, most = 1, self._all.rows
        while least < most:
            rows = (least + most + 1) // 2
            attention, around, one = self._turn(self._first(rows), 2)
            attention *= _SLACK
            if attention + around <= min(window, gap + one) and 2 * attention <= window + one:
                least = rows
            else:
                most = rows - 1
        return least


def _between(waves: int, most: int) -> set[int]:
    """Budgets to try below the largest."""
    match waves:
        case 1:
            return {1, most // 4, most // 2}
        case 2:
            return {most // 2}
    return set()

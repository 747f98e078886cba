"""The overlap planner in service: it remembers what was measured and corrects the cost model by it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from scheduler.calibration import Calibration
from scheduler.cost_model import CostModel
from scheduler.overlap_planner import PlanLimits, choose
from scheduler.plan import Overlap, Timing
from scheduler.snapshot import HostSequence, Snapshot
from scheduler.types import SequenceId
from scheduler.wave_assignment import assign_waves
from scheduler.work import Stage

_LARGEST_MARGIN = 0.2
_PATIENCE = 8
"""Plans in a row that bring a host row no token, before it is taken first."""
_ON_THE_ACCELERATOR = frozenset(Stage) - {Stage.HOST_ATTENTION, Stage.DOWNLOAD, Stage.UPLOAD}
_MAIN_BATCH = (Stage.DEVICE_DECODE, Stage.DEVICE_PREFILL, Stage.HOST_PREFILL)
"""Attention that only a main batch has. Without one the accelerator stands idle for the CPU's sake."""


class LearningPlanner:
    """See ``scheduler.planner.Planner``."""

    def __init__(self, costs: CostModel, limits: PlanLimits) -> None:
        """``costs`` are corrected from here on; ``limits.margin`` holds until an error was measured."""
        self._costs = costs
        self._limits = limits
        self._calibration = Calibration()
        self._waited: dict[SequenceId, tuple[int, int]] = {}
        """Of each host row: its tokens, and how many plans have brought no other."""

    @property
    def error(self) -> float | None:
        """Median relative error of predicted iteration times; None before there are any."""
        return self._calibration.error

    @property
    def factors(self) -> Mapping[Stage, float]:
        """What the cost model's times are multiplied with."""
        return self._calibration.factors

    def choose(self, snapshot: Snapshot) -> Overlap:
        """See ``Planner``."""
        error = self._calibration.error
        margin = self._limits.margin if error is None else min(error, _LARGEST_MARGIN)
        limits = msgspec.structs.replace(self._limits, margin=margin)
        return choose(snapshot, self._calibration.corrected(self._costs), limits)

    def assign(self, host: tuple[HostSequence, ...], overlap: Overlap) -> Mapping[SequenceId, int | None]:
        """See ``Planner``. Where only some rows take part, the others get their turns."""
        before, self._waited = self._waited, {}
        for row in host:
            tokens, plans = before.get(row.sequence_id, (row.tokens, -1))
            self._waited[row.sequence_id] = (row.tokens, plans + 1 if tokens == row.tokens else 0)
        first = {name for name, (_tokens, plans) in self._waited.items() if plans >= _PATIENCE}
        return assign_waves(host, overlap, first)

    def _priced(self, timing: Timing) -> dict[Stage, float]:
        """Stage times with the gaps between units as part of what units take.

        The more passes, the more gaps: as a constant of the iteration they would be held against every plan.
        """
        stages = dict(timing.stages)
        if any(timing.predicted.get(stage, 0.0) > 0 for stage in _MAIN_BATCH) and Stage.DENSE in stages:
            busy = sum(seconds for stage, seconds in stages.items() if stage in _ON_THE_ACCELERATOR)
            stages[Stage.DENSE] += max(0.0, timing.total - busy - self._costs.overhead)
        return stages

    def learn(self, overlap: Overlap, timing: Timing) -> None:
        """See ``Planner``."""
        self._calibration.observe_stages(timing.predicted, self._priced(timing))
        if timing.lead > 0:
            self._calibration.observe_lead(timing.lead)
        if overlap.seconds > 0:
            self._calibration.observe_iteration(overlap.seconds, timing.total)

"""What the scheduler asks of whoever decides how host rows are hidden behind the main batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from scheduler.plan import ACCELERATOR_ONLY, Overlap, PlanMode, Timing
from scheduler.snapshot import HostSequence, Snapshot
from scheduler.types import SequenceId


class Planner(Protocol):
    """Numbers in, a choice out: the same for the same, whatever the clock says."""

    def choose(self, snapshot: Snapshot) -> Overlap:
        """How host rows advance in the next iteration, and how many prompt tokens it computes.

        Where ``snapshot`` has no host rows the mode is ``accelerator-only``.
        """

    def assign(self, host: tuple[HostSequence, ...], overlap: Overlap) -> Mapping[SequenceId, int | None]:
        """The wave of each host row; None, or no entry, for those that begin no token."""

    def learn(self, overlap: Overlap, timing: Timing) -> None:
        """What an iteration planned as ``overlap`` really took."""


_PASSES_ALONE = 10_000
"""More than an iteration takes: without a main batch it ends when a token is sampled."""


class RidingPlanner:
    """Without a cost model: one wave, which rides while there is something to ride on."""

    def choose(self, snapshot: Snapshot) -> Overlap:
        """See ``Planner``."""
        if not snapshot.host:
            return ACCELERATOR_ONLY
        if snapshot.device_rows or snapshot.prefills:
            return Overlap(mode=PlanMode.ASYNC_OVERLAP, reason="no cost model")
        return Overlap(mode=PlanMode.CATCH_UP, passes=_PASSES_ALONE, reason="no main batch")

    def assign(self, host: tuple[HostSequence, ...], overlap: Overlap) -> Mapping[SequenceId, int | None]:
        """See ``Planner``."""
        return dict.fromkeys((row.sequence_id for row in host), 0)

    def learn(self, overlap: Overlap, timing: Timing) -> None:
        """Nothing to be learnt."""

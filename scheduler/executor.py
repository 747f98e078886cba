"""What the iteration loop needs of whatever computes: torch, an emulation, or the simulator."""

from __future__ import annotations

from typing import Protocol

from scheduler.plan import IterationPlan, IterationResult


class Executor(Protocol):
    """Computes plans in order, one in flight at a time."""

    def submit(self, plan: IterationPlan) -> None:
        """Start computing ``plan``. May return before it is done."""

    def collect(self) -> IterationResult:
        """Wait for the plan in flight and return its result."""

    def close(self) -> None:
        """Release device, threads and memory."""

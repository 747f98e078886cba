"""Whether the engine gets on with its work, from what it says and from what it does not say.

While there is work, iterations end one after another. One that lasts is no fault by itself: a long chunk of a
prompt on a slow machine takes its time. But then the process computes, which its heartbeats show.
"""

from __future__ import annotations

from dataclasses import dataclass

COMPUTING = 0.05
"""Share of one core from which on a process is taken to compute, not to wait for something."""
PATIENCE = 10
"""Stall timeouts after which an iteration hangs, whatever the process computes."""


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """What /health tells of the engine. Ages are seconds; None where there was nothing yet."""

    stalled: bool = False
    requests: int = 0
    """Live ones: the work that there is."""
    heartbeat_age: float | None = None
    iteration_age: float | None = None


class Pulse:
    """Judges one engine process. Times are monotonic seconds.

    Args:
        stall_timeout: seconds without any sign of progress after which the engine is stalled.
    """

    def __init__(self, stall_timeout: float) -> None:
        self._limit = stall_timeout
        self.reset()

    def reset(self) -> None:
        """Another process takes over."""
        self._beat_at: float | None = None
        self._cpu_seconds = 0.0
        self._computed_at = 0.0
        self._iteration_at: float | None = None
        self._working_since = 0.0

    def beat(self, now: float, cpu_seconds: float) -> None:
        """A heartbeat came."""
        if self._beat_at is not None:
            passed = now - self._beat_at
            if cpu_seconds - self._cpu_seconds >= COMPUTING * passed:
                self._computed_at = now
        self._beat_at, self._cpu_seconds = now, cpu_seconds

    def iteration(self, now: float) -> None:
        """An iteration ended."""
        self._iteration_at = now

    def work_began(self, now: float) -> None:
        """There was none before."""
        self._working_since = now

    def health(self, now: float, requests: int) -> EngineHealth:
        """The judgement; without requests nothing is expected of the engine."""
        progress = max(self._working_since, self._iteration_at or 0.0)
        quiet = now - progress
        computing = now - max(progress, self._computed_at) <= self._limit and quiet <= PATIENCE * self._limit
        return EngineHealth(
            stalled=bool(requests) and not computing,
            requests=requests,
            heartbeat_age=None if self._beat_at is None else now - self._beat_at,
            iteration_age=None if self._iteration_at is None else now - self._iteration_at,
        )

"""Time as an argument: the engine passes the real clock, tests and the simulator a virtual one."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Seconds from an arbitrary start, never going back."""

    def now(self) -> float:
        """The current time in seconds."""


class VirtualClock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """The current time in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` (at least 0) pass."""
        if seconds < 0:
            raise ValueError("time does not go back")
        self._now += seconds

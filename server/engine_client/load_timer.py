"""How long loading the model takes, for those who wait for it."""

from __future__ import annotations

FIRST_GUESS = 5.0
"""Seconds, while nothing is known."""


class LoadTimer:
    """Estimates from this load's progress, or from how long the last one took."""

    def __init__(self) -> None:
        self._starts_at = 0.0
        self._fraction = 0.0
        self._last: float | None = None

    def start(self, at: float) -> None:
        """An engine is started at this time, which may be yet to come."""
        self._starts_at = at
        self._fraction = 0.0

    def progress(self, fraction: float) -> None:
        """So much of the model is loaded, 0 to 1."""
        self._fraction = fraction

    def finish(self, now: float) -> float:
        """It is loaded.

        Returns:
            Seconds that took.
        """
        self._last = now - self._starts_at
        return self._last

    def whole(self) -> float:
        """Estimated seconds from start to finish."""
        return FIRST_GUESS if self._last is None else self._last

    def left(self, now: float) -> float:
        """Estimated seconds until it is loaded; negative when it takes longer than it should."""
        passed = now - self._starts_at
        if self._last is None and self._fraction > 0.0:
            return passed / self._fraction - passed
        return self.whole() - passed

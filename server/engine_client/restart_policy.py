"""How often a dead engine is started again."""

from __future__ import annotations

from collections import deque

WINDOW = 600.0
"""Seconds within which restarts are counted."""
FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
"""Seconds before the first restart in a window; each further one waits twice as long."""


class RestartPolicy:
    """Exponential back-off, and an end to it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._restarts: deque[float] = deque()

    def next_delay(self, now: float) -> float | None:
        """Seconds to wait before restarting, counted as done; None when the limit is reached."""
        while self._restarts and self._restarts[0] <= now - WINDOW:
            self._restarts.popleft()
        if len(self._restarts) >= self._limit:
            return None
        delay = min(FIRST_DELAY * 2.0 ** len(self._restarts), LONGEST_DELAY)
        self._restarts.append(now)
        return delay

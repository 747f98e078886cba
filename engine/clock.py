"""The real clock."""

from __future__ import annotations

import time


class MonotonicClock:
    """Implements scheduler.clock.Clock. The server's ``time.monotonic`` reads the same clock."""

    def now(self) -> float:
        """Seconds from an arbitrary start."""
        return time.monotonic()

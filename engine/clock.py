"""The real clock."""

from __future__ import annotations

import time


class MonotonicClock:
    """Implements scheduler.clock.Clock."""

    def now(self) -> float:
        """Seconds from an arbitrary start."""
        return time.perf_counter()

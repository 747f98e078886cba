"""Keeping an emulated stream to the times of a profile."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

from scheduler.cost_model import CostModel
from scheduler.work import Work

_PR_SET_TIMERSLACK = 29
_SLICE = 0.05
"""Longest sleep in one go: how long closing a device may take."""


def predict(costs: CostModel | None, work: Sequence[Work]) -> list[float]:
    """Seconds of each item; empty without costs."""
    return [] if costs is None else [costs.seconds(item) for item in work]


def sleep_until(
    due: float, clock: Callable[[], float], sleep: Callable[[float], None], stop: Callable[[], bool]
) -> None:
    """Sleep until the clock shows ``due``, or soon after ``stop()`` has become true."""
    while not stop() and (left := due - clock()) > 0.0:
        sleep(min(left, _SLICE))


def sharpen_sleep() -> None:
    """Let this thread's sleeps end when they should; by default Linux adds up to 50 microseconds.

    Where prctl(2) refuses, they end that much later: nothing depends on it but accuracy.
    """
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)

"""How long a device works at what, and how long it has nothing to do."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from scheduler.work import Stage, Work


class BusyMeter:
    """Seconds by stage. Any thread may add to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys(Stage, 0.0)

    def add(self, seconds: float, work: Sequence[Work], predicted: Sequence[float]) -> None:
        """An operation took ``seconds``.

        Args:
            seconds: shared among its items in proportion to what was predicted for them; the first
                item's where nothing was. An operation without work is not counted.
            work: its items.
            predicted: seconds of each of them; empty or all 0 if unknown.
        """
        if not work:
            return
        total = sum(predicted)
        with self._lock:
            if total <= 0.0:
                self._seconds[work[0].stage] += seconds
                return
            for item, share in zip(work, predicted, strict=True):
                self._seconds[item.stage] += seconds * share / total

    def seconds(self) -> Mapping[Stage, float]:
        """So far, every stage."""
        with self._lock:
            return dict(self._seconds)


class IdleMeter:
    """What one stream does not do within iterations. All times are points of one clock, in seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._iteration: float | None = None
        self._running = False
        self._finished = 0.0
        self._idle = 0.0
        self._waiting = 0.0

    def begin(self, now: float) -> None:
        """An iteration begins."""
        with self._lock:
            self._iteration = now

    def end(self, now: float) -> None:
        """It has ended."""
        with self._lock:
            if self._iteration is not None and not self._running:
                self._idle += max(0.0, now - max(self._iteration, self._finished))
            self._iteration = None

    def started(self, begun: float, launched: float, arrived: float) -> None:
        """An operation runs: since ``begun``, handed over at ``launched``, after events of ``arrived``."""
        with self._lock:
            self._running = True
            if self._iteration is None:
                return
            since = max(self._iteration, self._finished)
            self._idle += max(0.0, begun - since)
            self._waiting += max(0.0, min(arrived, begun) - max(since, launched))

    def finished(self, at: float) -> None:
        """The operation has ended."""
        with self._lock:
            self._running = False
            self._finished = at

    def seconds(self) -> tuple[float, float]:
        """Idle so far, and how much of that an operation stood waiting for an event."""
        with self._lock:
            return self._idle, self._waiting

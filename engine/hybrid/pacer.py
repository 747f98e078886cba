"""When to launch the next unit: a moment before the accelerator has done the last one.

Earlier, and a result of the CPU that comes meanwhile misses it; later, and the accelerator stands idle.
"""

from __future__ import annotations

from collections import deque

from engine.devices.base import Event
from scheduler.clock import Clock

_EARLIER, _LATER = 4e-6, 1e-6
"""How the margin changes with a unit that came late, and one that didn't: one in five is late, by little."""
_SHORTEST, _LONGEST = 50e-6, 300e-6
_SMOOTHING = 0.1
_FASTEST, _SLOWEST = 0.2, 50.0


class Pacer:
    """Expects units to take what the cost model says, times what they lately took of that.

    How long before their end the next one is launched it learns: it takes a while until the host wakes up and
    has launched it.
    """

    def __init__(self, clock: Clock, margin: float) -> None:
        """``margin``: seconds before the expected end, to begin with."""
        self._clock = clock
        self.margin = margin
        """Seconds before a unit's expected end at which the next one is launched."""
        self._units: deque[tuple[Event, float]] = deque()
        self._began = 0.0
        """When the first of them did."""
        self._pace = 1.0
        self._fresh = True

    def begin(self) -> None:
        """An iteration begins: nobody could have launched its first unit earlier."""
        self._fresh = True

    def launched(self, event: Event, seconds: float) -> None:
        """A unit is queued that ends with ``event`` and is predicted to take so long."""
        idle = not self._units or self._units[-1][0].query()
        if not self._fresh:
            learnt = self.margin + _EARLIER if idle else self.margin - _LATER
            self.margin = min(max(learnt, _SHORTEST), _LONGEST)
        self._fresh = False
        if not self._units:
            self._began = self._clock.now()
        self._units.append((event, seconds))

    def has_room(self) -> bool:
        """Whether the next unit may be launched where nothing is gained by waiting: one is queued at most."""
        return self.time_left() is not None

    def time_left(self) -> float | None:
        """Seconds until the next unit should be launched; None: not before another one has ended."""
        while self._units and self._units[0][0].query():
            self._ended()
        if len(self._units) > 1:
            return None
        if not self._units:
            return 0.0
        expected = self._units[0][1] * self._pace
        return max(0.0, self._began + expected - self.margin - self._clock.now())

    def _ended(self) -> None:
        event, predicted = self._units.popleft()
        passed = event.passed_at()
        ended = self._clock.now() if passed is None else passed
        if predicted > 0:
            pace = min(max((ended - self._began) / predicted, _FASTEST), _SLOWEST)
            self._pace += _SMOOTHING * (pace - self._pace)
        self._began = ended

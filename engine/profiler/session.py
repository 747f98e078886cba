"""Measures points in rounds, and keeps what was found: the only place that repeats and takes medians.

All points of a table are visited in turn, again and again, so that a busy minute of the machine does not
fall upon one of them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median, quantiles

from scheduler.clock import Clock
from scheduler.profile import AttentionTimes, RowTimes

Visit = Callable[[], float]
"""Measures once: seconds."""
Point = Callable[[], Visit]
"""Prepares to measure: lays out a batch over other pages than before, say. Not timed."""
Progress = Callable[[str, float], None]
"""Called with what is being measured, and the part of the whole that is done, 0 to 1."""

_FEWEST_ROUNDS = 3
_MOST_ROUNDS = 25
_MOST_REPEATS = 8
"""In a visit."""
_VISIT_SECONDS = 0.005
"""After which none is repeated."""


class Session:
    """Divides a time among the tables that are measured."""

    def __init__(self, seconds: float, clock: Clock, progress: Progress) -> None:
        """``seconds``: about how long all of it is to take. Three rounds are made however long they take."""
        self.clock = clock
        self._seconds = seconds
        self._progress = progress
        self._done = 0.0
        self._spreads: list[float] = []

    @property
    def spread(self) -> float:
        """Of the points measured so far, the median of their relative spreads."""
        return median(self._spreads) if self._spreads else 0.0

    def measure(self, title: str, share: float, points: Sequence[Point]) -> list[float]:
        """Median seconds of each point.

        Args:
            title: for people.
            share: of the session's time, 0 to 1.
            points: what is measured.
        """
        self._progress(title, self._done)
        began, budget = self.clock.now(), share * self._seconds

        def progress(part: float) -> None:
            elapsed = (self.clock.now() - began) / budget if budget else 1.0
            self._progress(title, self._done + share * min(1.0, elapsed, part))

        samples = _rounds(points, budget, self.clock, progress)
        self._done += share
        self._progress(title, self._done)
        self._spreads += map(relative_spread, samples)
        return [median(each) for each in samples]

    def over_rows(
        self, title: str, share: float, rows: Sequence[int], point: Callable[[int], Point]
    ) -> RowTimes:
        """A table of ``point(rows)``."""
        seconds = self.measure(title, share, [point(each) for each in rows])
        return RowTimes(rows=tuple(rows), seconds=tuple(map(rounded, seconds)))

    def over_both(
        self,
        title: str,
        share: float,
        rows: Sequence[int],
        tokens: Sequence[int],
        point: Callable[[int, int], Point],
    ) -> AttentionTimes:
        """A table of ``point(rows, tokens)``."""
        seconds = iter(self.measure(title, share, [point(one, other) for one in rows for other in tokens]))
        table = tuple(tuple(rounded(next(seconds)) for _ in tokens) for _ in rows)
        return AttentionTimes(rows=tuple(rows), tokens=tuple(tokens), seconds=table)


def relative_spread(samples: Sequence[float]) -> float:
    """The middle half of ``samples``, from quartile to quartile, in parts of the median."""
    middle = median(samples)
    if len(samples) < 2 or middle <= 0:
        return 0.0
    low, _, high = quantiles(samples, method="inclusive")
    return (high - low) / middle


def rounded(value: float) -> float:
    """To four digits: more would claim too much."""
    return float(f"{value:.4g}")


def _rounds(
    points: Sequence[Point], budget: float, clock: Clock, progress: Callable[[float], None]
) -> list[list[float]]:
    began = clock.now()
    for number, point in enumerate(points, start=1):
        point()()  # libraries compile and allocate at first
        progress(number / len(points) / (_FEWEST_ROUNDS + 1))
    samples: list[list[float]] = [[] for _ in points]
    for done in range(1, _MOST_ROUNDS + 1):
        round_began = clock.now()
        for number, (point, found) in enumerate(zip(points, samples, strict=True), start=1):
            found += _visited(point(), clock)
            progress((done + number / len(points)) / (_FEWEST_ROUNDS + 1))
        now = clock.now()
        if done >= _FEWEST_ROUNDS and now + (now - round_began) > began + budget:
            break
    return samples


def _visited(visit: Visit, clock: Clock) -> list[float]:
    began = clock.now()
    samples = [visit()]
    while len(samples) < _MOST_REPEATS and clock.now() - began < _VISIT_SECONDS:
        samples.append(visit())
    return samples

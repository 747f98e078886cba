"""Times between, below and above the points of a measured grid.

Piecewise linear, and monotone in every argument however noisy the measurements are. Below the grid the line
through its first two points goes on towards 0, but never to less than in proportion; above, the last slope
goes on. Arguments are 0 or more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

FAR = 2**40
"""More than any argument: the last slope is followed up to here."""


def check_axis(name: str, axis: Sequence[int]) -> None:
    """Raise ValueError unless ``axis`` has two points or more, none negative, each above the one before."""
    if len(axis) < 2:
        raise ValueError(f"{name} needs two points or more, not {len(axis)}")
    if axis[0] < 0 or axis[-1] >= FAR:
        raise ValueError(f"{name} must be 0 or more, and less than 2**40")
    for one, next_one in pairwise(axis):
        if one >= next_one:
            raise ValueError(f"{name} must grow from point to point, not go from {one} to {next_one}")


def monotone(values: Iterable[Sequence[float]]) -> list[list[float]]:
    """Values that never fall along either axis, half-way between the least such above and the greatest below.

    Values that don't fall anyway stay as they are.
    """
    rows = [list(row) for row in values]
    above = _running_maximum(rows)
    mirrored = _running_maximum([[-value for value in reversed(row)] for row in reversed(rows)])
    below = [[-value for value in reversed(row)] for row in reversed(mirrored)]
    return [
        [(one + other) / 2 for one, other in zip(*pair, strict=True)]
        for pair in zip(above, below, strict=True)
    ]


class Line:
    """A time over one argument."""

    def __init__(self, axis: Sequence[int], values: Sequence[float]) -> None:
        """``values`` [len(axis)], at the points of ``axis`` (see ``check_axis``)."""
        check_axis("axis", axis)
        self._last = axis[-1]
        self._axis = _extended_axis(axis)
        self._values = _extended(axis, monotone([values])[0])
        self._slopes = [
            (self._values[i + 1] - self._values[i]) / (self._axis[i + 1] - self._axis[i])
            for i in range(len(self._axis) - 1)
        ]

    def __call__(self, x: int) -> float:
        """The time at ``x``."""
        i = _segment(self._axis, x)
        return self._values[i] + (x - self._axis[i]) * self._slopes[i]

    def outside(self, x: int) -> bool:
        """Whether ``x`` is above the grid: the time there is extrapolated."""
        return x > self._last


class Surface:
    """A time over two arguments, bilinear."""

    def __init__(
        self, first: Sequence[int], second: Sequence[int], values: Sequence[Sequence[float]]
    ) -> None:
        """``values`` [len(first)][len(second)], at the points of the two axes (see ``check_axis``)."""
        check_axis("first axis", first)
        check_axis("second axis", second)
        self._last = first[-1], second[-1]
        self._first, self._second = _extended_axis(first), _extended_axis(second)
        # Slopes differ from row to row, so lines could cross beside the grid. In it this changes nothing.
        rows = _running_maximum([_extended(second, row) for row in monotone(values)])
        columns = [_extended(first, column) for column in zip(*rows, strict=True)]
        self._values = _running_maximum([list(row) for row in zip(*columns, strict=True)])

    def __call__(self, x: int, y: int) -> float:
        """The time at ``x`` on the first axis and ``y`` on the second."""
        i, j = _segment(self._first, x), _segment(self._second, y)
        low, high = self._values[i], self._values[i + 1]
        left = self._second[j]
        along = (y - left) / (self._second[j + 1] - left)
        below = low[j] + (low[j + 1] - low[j]) * along
        above = high[j] + (high[j + 1] - high[j]) * along
        left = self._first[i]
        return below + (above - below) * ((x - left) / (self._first[i + 1] - left))

    def outside(self, x: int, y: int) -> bool:
        """Whether ``x`` or ``y`` is above the grid: the time there is extrapolated."""
        return x > self._last[0] or y > self._last[1]


def _segment(axis: Sequence[int], x: int) -> int:
    """Index of the point at or below ``x``, and of the last but one above that."""
    return min(bisect_right(axis, x), len(axis) - 1) - 1


def _extended_axis(axis: Sequence[int]) -> list[int]:
    return [*([0] if axis[0] else []), *axis, FAR]


def _extended(axis: Sequence[int], values: Sequence[float]) -> list[float]:
    """Values at the points of ``_extended_axis``, from some at ``axis`` that don't fall."""
    start = values[0] - axis[0] * (values[1] - values[0]) / (axis[1] - axis[0])
    slope = (values[-1] - values[-2]) / (axis[-1] - axis[-2])
    return [*([max(0.0, start)] if axis[0] else []), *values, values[-1] + (FAR - axis[-1]) * slope]


def _running_maximum(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """At each place the greatest value at or before it on both axes."""
    columns = zip(*(accumulate(row, max) for row in rows), strict=True)
    return [list(row) for row in zip(*(accumulate(column, max) for column in columns), strict=True)]

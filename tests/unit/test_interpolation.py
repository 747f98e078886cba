"""Interpolated times: exact on the grid, monotone everywhere, sensible beside it."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from scheduler.interpolation import Line, Surface, monotone

SECONDS = st.floats(0, 1e3).map(lambda value: round(value, 6))
PLACES = st.integers(0, 10**6)


@st.composite
def axes(draw, smallest: int = 0):
    points = draw(st.sets(st.integers(smallest, 10**5), min_size=2, max_size=6))
    return sorted(points)


@st.composite
def lines(draw):
    axis = draw(axes())
    return axis, draw(st.lists(SECONDS, min_size=len(axis), max_size=len(axis)))


@st.composite
def surfaces(draw):
    first, second = draw(axes()), draw(axes())
    row = st.lists(SECONDS, min_size=len(second), max_size=len(second))
    return first, second, draw(st.lists(row, min_size=len(first), max_size=len(first)))


def at_most(one: float, other: float) -> bool:
    """Up to rounding."""
    return one <= other + 1e-9 * max(1, abs(other))


@given(lines())
def test_a_line_is_exact_on_its_grid(case):
    axis, values = case
    line = Line(axis, values)
    assert [line(x) for x in axis] == monotone([values])[0]
    assert Line(axis, sorted(values))(axis[1]) == sorted(values)[1]


@given(lines(), PLACES, PLACES)
def test_a_line_never_falls(case, one, other):
    line = Line(*case)
    assert at_most(line(min(one, other)), line(max(one, other)))
    assert line(one) >= 0


@given(surfaces())
def test_a_surface_is_exact_on_its_grid(case):
    first, second, values = case
    surface = Surface(first, second, values)
    assert [[surface(x, y) for y in second] for x in first] == monotone(values)


@given(surfaces(), PLACES, PLACES, PLACES, PLACES)
def test_a_surface_never_falls(case, x, other_x, y, other_y):
    surface = Surface(*case)
    low, high = sorted((x, other_x))
    left, right = sorted((y, other_y))
    assert at_most(surface(low, left), surface(high, left))
    assert at_most(surface(low, left), surface(low, right))
    assert surface(low, left) >= 0


@given(lines(), PLACES)
def test_below_the_grid_it_is_between_proportion_and_the_first_point(case, x):
    axis, values = case
    line = Line(axis, values)
    if x < axis[0]:
        first = line(axis[0])
        assert at_most(first * x / axis[0], line(x))
        assert at_most(line(x), first)


@given(surfaces(), PLACES)
def test_below_the_grid_of_a_surface_too(case, x):
    first, second, _ = case
    surface = Surface(*case)
    if x < first[0]:
        for y in second:
            assert at_most(surface(first[0], y) * x / first[0], surface(x, y))
            assert at_most(surface(x, y), surface(first[0], y))


@given(st.lists(st.lists(SECONDS, min_size=3, max_size=3), min_size=1, max_size=5))
def test_monotone_values_stay_between_what_was_measured(values):
    made = monotone(values)
    for row, measured in zip(made, values, strict=True):
        assert row == sorted(row)
        assert min(map(min, values)) <= row[0] and row[-1] <= max(map(max, values)), measured
    assert monotone(made) == made


def test_noise_is_split_between_its_neighbours():
    assert monotone([[1, 3, 2, 4]]) == [[1, 2.5, 2.5, 4]]


def test_between_points_it_is_linear():
    line = Line([1, 3, 5], [1.0, 2.0, 6.0])
    assert [line(x) for x in (2, 4)] == [1.5, 4.0]
    assert Surface([0, 2], [0, 4], [[0.0, 4.0], [2.0, 14.0]])(1, 1) == pytest.approx(3)


def test_above_the_grid_the_last_slope_goes_on():
    line = Line([1, 3, 5], [1.0, 2.0, 6.0])
    assert line(7) == pytest.approx(10)
    assert [line.outside(x) for x in (0, 1, 5, 6)] == [False, False, False, True]
    surface = Surface([1, 2], [10, 20], [[11.0, 21.0], [12.0, 22.0]])
    assert surface(5, 100) == pytest.approx(105)
    assert [surface.outside(*place) for place in ((0, 0), (2, 20), (3, 20), (2, 21))] == [
        False,
        False,
        True,
        True,
    ]


def test_below_the_grid_the_first_line_goes_on_towards_zero():
    assert Line([4, 8], [3.0, 5.0])(2) == pytest.approx(2)
    assert Line([4, 8], [1.0, 5.0])(2) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("axis", "message"),
    [([1], "two points"), ([2, 2], "from 2 to 2"), ([3, 1], "from 3 to 1"), ([-1, 1], "0 or more")],
)
def test_what_is_no_axis_is_refused(axis, message):
    with pytest.raises(ValueError, match=message):
        Line(axis, [1.0] * len(axis))

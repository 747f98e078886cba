"""Stop strings against str.find on the whole text."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from server.text.stop_matcher import StopMatcher
from tests.builders.texts import STEADY, first_stop

LETTERS = "ab\n👩é"
TEXTS = st.text(LETTERS, max_size=30)
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=16)


def held_back(text: str, stops: list[str]) -> str:
    """The longest end of a text that some stop string begins with."""
    for start in range(len(text) + 1):
        if any(stop.startswith(text[start:]) for stop in stops):
            return text[start:]
    return ""


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(min(place, len(text)) for place in cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(places)]


@STEADY
@given(TEXTS, STOPS, st.lists(st.integers(0, 30), max_size=12), st.booleans())
@example("xaab", ["ab", "aab"], [], False)
@example("aaab", ["aab"], [1, 2, 3], False)
@example("abab", ["ba", "abab"], [2], True)
def test_streamed_equals_found(text: str, stops: list[str], cuts: list[int], include: bool):
    matcher = StopMatcher(stops, include_stop=include)
    seen, given_out = "", ""
    for piece in pieces_of(text, cuts):
        seen += piece
        given_out += matcher.feed(piece)
        stop = first_stop(seen, stops)
        if stop is None:
            assert matcher.matched is None
            assert given_out == seen.removesuffix(held_back(seen, stops))
        else:
            start, end = stop
            assert matcher.matched == seen[start:end]
            assert given_out == seen[: end if include else start]
    given_out += matcher.finish()
    stop = first_stop(text, stops)
    assert given_out == (text if stop is None else text[: stop[include]])


def test_what_can_no_longer_be_a_stop_string_is_released():
    matcher = StopMatcher(["DEFGHIJ"])
    assert [matcher.feed(piece) for piece in ("ABCDE", "FG", "X", "DEF")] == ["ABC", "", "DEFGX", ""]
    assert matcher.finish() == "DEF"


def test_nothing_comes_after_a_match():
    matcher = StopMatcher(["\n\n"])
    assert matcher.feed("A\n") == "A"
    assert matcher.feed("\nB") == ""
    assert matcher.matched == "\n\n"
    assert matcher.feed("C") == ""
    assert matcher.finish() == ""


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])

"""What a client sees of a choice, against the whole text and the tokens' places in it."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler.types import TokenLogprobs
from server.text.choice_text import ChoiceText, TextDelta
from server.text.tokenizer import Vocabulary
from tests.builders.texts import CUTS, STEADY, cut, first_stop

ALPHABET = st.sampled_from(["a", "b", "\n", "é", "漢", "👩‍👧", "\u202eא", "\ufffd"])
TEXTS = st.lists(ALPHABET, max_size=16).map("".join)
CALLS = st.lists(st.integers(1, 4), min_size=1, max_size=8)


@st.composite
def stops_of(draw: st.DrawFn, texts: st.SearchStrategy[str] = TEXTS) -> tuple[str, list[str]]:
    """A text, and stop strings of which some are in it."""
    text = draw(texts)
    places = st.integers(0, len(text))
    inside = [text[a:b] for a, b in draw(st.lists(st.tuples(places, places), max_size=3)) if a < b]
    outside = draw(st.lists(TEXTS.filter(bool), max_size=3))
    return text, inside + outside


def entry(token_id: int) -> TokenLogprobs:
    return TokenLogprobs(token_id, -0.5, ())


def run(choice: ChoiceText, count: int, calls: list[int], logprobs: bool) -> list[TextDelta]:
    """Feed tokens 0 to count-1 in groups, and finish."""
    groups = cut(bytes(range(count)), calls)
    deltas = [choice.feed(tuple(ids), tuple(map(entry, ids)) if logprobs else ()) for ids in groups]
    return [*deltas, choice.finish()]


@STEADY
@given(stops_of(), CUTS, CALLS, st.booleans(), st.booleans())
@example(("xab", ["ab"]), [3], [1], False, True)
@example(("a👩‍👧b", ["👧"]), [2], [2], False, True)
@example(("a漢", []), [2], [1], False, True)
def test_deltas_join_to_the_text_before_the_stop(
    case: tuple[str, list[str]], sizes: list[int], calls: list[int], include: bool, logprobs: bool
):
    text, stops = case
    data = text.encode()
    pieces = cut(data, sizes)
    choice = ChoiceText(Vocabulary(tuple(pieces)), stop=stops, include_stop=include)
    deltas = run(choice, len(pieces), calls, logprobs)

    stop = first_stop(text, stops)
    expected = text if stop is None else text[: stop[include]]
    given_out = ""
    for delta in deltas:
        given_out += delta.text
        assert expected.startswith(given_out)
    assert given_out == expected

    assert deltas[-1].stopped == (stop is not None)
    assert choice.matched_stop == (None if stop is None else text[slice(*stop)])
    ends = [len(b"".join(pieces[: i + 1]).decode(errors="ignore")) for i in range(len(pieces))]
    wanted = len(pieces) if stop is None else 1 + next(i for i, end in enumerate(ends) if end >= stop[1])
    assert choice.completion_tokens == wanted


@STEADY
@given(stops_of(), CUTS, CALLS, st.booleans())
@example(("xab", ["ab"]), [3], [1], False)
@example(("ab漢", ["漢"]), [1, 2], [1], False)
def test_each_delta_has_the_entries_of_its_own_tokens(
    case: tuple[str, list[str]], sizes: list[int], calls: list[int], include: bool
):
    text, stops = case
    data = text.encode()
    pieces = cut(data, sizes)
    choice = ChoiceText(Vocabulary(tuple(pieces)), stop=stops, include_stop=include)
    deltas = run(choice, len(pieces), calls, logprobs=True)

    for delta in deltas:
        spelled = b"".join(pieces[logprobs.token_id] for logprobs in delta.logprobs)
        if delta.stopped:
            assert spelled.decode(errors="ignore").startswith(delta.text)
        else:
            assert spelled == delta.text.encode()

    shown = "".join(delta.text for delta in deltas)
    starts = [len(b"".join(pieces[:i]).decode(errors="ignore")) for i in range(len(pieces))]
    with_text = [i for i, start in enumerate(starts) if start < len(shown)]
    assert [logprobs.token_id for delta in deltas for logprobs in delta.logprobs] == with_text
    assert [offset for delta in deltas for offset in delta.text_offsets] == [starts[i] for i in with_text]


def test_a_token_cut_by_the_stop_keeps_its_entry_and_one_within_it_does_not():
    choice = ChoiceText(Vocabulary((b"one ", b"tw", b"o ST", b"OP th", b"ree")), stop=["STOP"])
    first = choice.feed((0, 1), (entry(0), entry(1)))
    assert first == TextDelta("one tw", (entry(0), entry(1)), (0, 4))
    # Part of this token may be the stop string's, so it waits as a whole.
    assert choice.feed((2,), (entry(2),)) == TextDelta()
    assert choice.feed((3, 4), (entry(3), entry(4))) == TextDelta("o ", (entry(2),), (6,), stopped=True)
    assert choice.completion_tokens == 4
    assert choice.feed((4,), (entry(4),)) == TextDelta(stopped=True)
    assert choice.finish() == TextDelta(stopped=True)
    assert choice.completion_tokens == 4


def test_without_logprobs_text_waits_no_longer_than_the_stop_needs():
    choice = ChoiceText(Vocabulary((b"o ST", b"AY")), stop=["STOP"])
    assert choice.feed((0,)) == TextDelta("o ")
    assert choice.feed((1,)) == TextDelta("STAY")


def test_tokens_without_text_bring_no_entry_and_count_as_usage():
    tokens = Vocabulary((b"hi", b"<|im_end|>", b"\xf0\x9f"), special_ids=frozenset({1}))
    choice = ChoiceText(tokens)
    assert choice.feed((0, 1, 2), (entry(0), entry(1), entry(2))) == TextDelta("hi", (entry(0),), (0,))
    assert choice.finish() == TextDelta()
    assert choice.completion_tokens == 3


def test_a_broken_character_brings_the_entries_of_its_tokens():
    choice = ChoiceText(Vocabulary((b"\xf0\x9f", b"a")))
    assert choice.feed((0,), (entry(0),)) == TextDelta()
    assert choice.feed((1,), (entry(1),)) == TextDelta("\ufffda", (entry(0), entry(1)), (0, 1))


def test_a_stop_string_is_found_in_special_tokens_that_are_shown():
    tokens = Vocabulary((b"hi", b"<|im_end|>"), special_ids=frozenset({1}))
    choice = ChoiceText(tokens, stop=["<|im"], skip_special_tokens=False)
    assert choice.feed((0, 1)) == TextDelta("hi", stopped=True)


def test_a_completion_goes_on_with_the_prompt_and_a_chat_answer_does_not():
    tokens = Vocabulary((b" hi",), strips_leading_space=True)
    assert ChoiceText(tokens).feed((0,)).text == "hi"
    assert ChoiceText(tokens, continues_text=True).feed((0,)).text == " hi"


def test_logprobs_must_match_the_tokens():
    with pytest.raises(ValueError, match="zip"):
        ChoiceText(Vocabulary((b"a", b"b"))).feed((0, 1), (entry(0),))

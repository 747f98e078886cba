"""Incremental detokenisation against decoding all bytes at once."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from server.text.detokenizer import IncrementalDetokenizer
from server.text.tokenizer import Vocabulary
from tests.builders.texts import CUTS, STEADY, cut

CHARACTERS = st.one_of(
    st.sampled_from(["👩‍👩‍👧‍👦", "🏳️‍🌈", "漢字", "שלום", "مرحبا", "e\u0301", "\ufffd", "\x00", "ß", " "]),
    st.characters(exclude_categories=["Cs"]),
)
TEXTS = st.lists(CHARACTERS, max_size=12).map("".join)


def decoded(data: bytes) -> str:
    """Strict decoding, error by error: U+FFFD for what is wrong, nothing for an incomplete end."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        good = data[: error.start].decode()
        if error.reason == "unexpected end of data":
            return good
        return good + "\ufffd" + decoded(data[error.end :])


def detokenizer(pieces: list[bytes], **options: bool) -> IncrementalDetokenizer:
    return IncrementalDetokenizer(Vocabulary(tuple(pieces)), **options)


@STEADY
@given(TEXTS, CUTS)
def test_any_tokenisation_gives_the_text_back(text: str, sizes: list[int]):
    pieces = cut(text.encode(), sizes)
    assert detokenizer(pieces).feed(range(len(pieces))) == text


@STEADY
@given(st.binary(max_size=40), CUTS, CUTS)
@example(b"\xf0\x9f\x98", [1], [1])
@example(b"\xf0\x9fa\x98", [2], [1])
@example(b"\xed\xa0\x80\xe0\x80", [1], [2])
def test_bytes_that_are_no_text_and_any_split_into_calls(data: bytes, sizes: list[int], calls: list[int]):
    pieces = cut(data, sizes)
    one_by_one, in_calls = detokenizer(pieces), detokenizer(pieces)
    assert "".join(one_by_one.feed([i]) for i in range(len(pieces))) == decoded(data)
    groups = cut(bytes(range(len(pieces))), calls)
    assert "".join(in_calls.feed(group) for group in groups) == decoded(data)


@STEADY
@given(TEXTS, CUTS)
def test_no_character_waits_once_its_last_byte_is_there(text: str, sizes: list[int]):
    pieces = cut(text.encode(), sizes)
    detok = detokenizer(pieces)
    given_out, data = "", b""
    for index, piece in enumerate(pieces):
        given_out += detok.feed([index])
        data += piece
        assert given_out == data.decode(errors="ignore")


@STEADY
@given(st.binary(max_size=30), CUTS)
def test_tokens_lie_where_their_bytes_do(data: bytes, sizes: list[int]):
    """The character of a byte is the number of characters and broken pieces ended before it."""
    pieces = cut(data, sizes)
    detok = detokenizer(pieces)
    position = 0
    for index, piece in enumerate(pieces):
        span = detok.feed_token(index)
        first, last = position, position + len(piece) - 1
        assert (span.start, span.end) == (character_at(data, first), character_at(data, last) + 1)
        position += len(piece)


def character_at(data: bytes, index: int) -> int:
    """Index of the character (or U+FFFD) that holds a byte, counted by decoding from the front."""
    start, count = 0, 0
    while True:
        try:
            data[start:].decode()
            lengths = [len(character.encode()) for character in data[start:].decode()]
        except UnicodeDecodeError as error:
            good = data[start : start + error.start].decode()
            end = len(data) - start if error.reason == "unexpected end of data" else error.end
            lengths = [*(len(character.encode()) for character in good), end - error.start]
        for length in lengths:
            if index < start + length:
                return count
            start, count = start + length, count + 1


def test_special_tokens_are_left_out_unless_asked_for():
    tokens = Vocabulary((b"a", b"<|end|>", b"b"), special_ids=frozenset({1}))
    assert IncrementalDetokenizer(tokens).feed([0, 1, 2]) == "ab"
    assert IncrementalDetokenizer(tokens, skip_special_tokens=False).feed([0, 1, 2]) == "a<|end|>b"


def test_a_special_token_does_not_break_a_character():
    tokens = Vocabulary((b"\xc3", b"<|end|>", b"\xa9"), special_ids=frozenset({1}))
    assert IncrementalDetokenizer(tokens).feed([0, 1, 2]) == "é"


def test_an_id_without_a_token_has_no_text():
    detok = detokenizer([b"a"])
    assert detok.feed([0, 1, 151_935, -1]) == "a"


def test_the_space_before_a_text_is_taken_once_at_its_very_start():
    tokens = Vocabulary((b"<s>", b" a", b" ", b""), frozenset({0}), strips_leading_space=True)
    assert IncrementalDetokenizer(tokens).feed([0, 3, 1, 1]) == "a a"
    assert IncrementalDetokenizer(tokens).feed([2, 2, 1]) == "  a"
    assert IncrementalDetokenizer(tokens, continues_text=True).feed([1, 1]) == " a a"
    assert IncrementalDetokenizer(tokens, skip_special_tokens=False).feed([0, 1]) == "<s> a"


@STEADY
@given(TEXTS, CUTS)
def test_whole_and_incremental_decoding_agree(text: str, sizes: list[int]):
    pieces = cut(text.encode(), sizes)
    tokens = Vocabulary(tuple(pieces), frozenset({1}), strips_leading_space=True)
    ids = range(len(pieces))
    assert IncrementalDetokenizer(tokens).feed(ids) == decoded(tokens.decode_bytes(ids))

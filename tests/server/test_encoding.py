"""Texts that are far too long are refused after a part of them; all others are encoded exactly."""

from __future__ import annotations

import pytest

from server.generation.encoding import encode_prompt
from server.http.errors import ApiError
from tests.server.fakes import byte_tokenizer


class CountingTokenizer:
    def __init__(self, characters_per_token: int) -> None:
        self.characters_per_token = characters_per_token
        self.seen = 0

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        self.seen += len(text)
        return [1] * (len(text) // self.characters_per_token)


def encode(text, tokenizer, context_length=1000):
    return encode_prompt(text, tokenizer, context_length=context_length, add_special=False, param="prompt")


def test_a_far_too_long_text_is_not_read_to_its_end():
    tokenizer = CountingTokenizer(4)
    with pytest.raises(ApiError) as caught:
        encode("x" * 8_000_000, tokenizer)
    assert tokenizer.seen < 100_000
    assert caught.value.code == "context_length_exceeded"
    assert "at least" in caught.value.message


@pytest.mark.parametrize(("characters", "per_token"), [(8_000, 4), (100_000, 100), (100_000, 10_000)])
def test_a_text_that_might_fit_is_encoded_as_a_whole(characters, per_token):
    tokenizer = CountingTokenizer(per_token)
    assert len(encode("x" * characters, tokenizer)) == characters // per_token


def test_lone_surrogates_are_the_clients_fault():
    for text in ("a\ud800", "x" * 50_000 + "\udfff"):
        with pytest.raises(ApiError) as caught:
            encode(text, byte_tokenizer(), context_length=10)
        assert caught.value.status == 400

"""Token ids into text, as they come.

Works on bytes: a character may be spread over several tokens, and a token may hold parts of two.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import NamedTuple

from server.text.tokenizer.vocabulary import TokenTable


class TokenText(NamedTuple):
    """What one token added, in characters of the text since the start."""

    text: str
    """The characters that this token completed."""
    start: int
    """Index of the character that holds the token's first byte."""
    end: int
    """One more than the index of the character that holds its last byte.

    Equal to ``start`` for a token without text. Neighbours that share a character overlap.
    """


class IncrementalDetokenizer:
    """Turns token ids into text; however the ids are split into calls, the text is the same.

    An incomplete character is held until its last byte comes, and dropped if none does. U+FFFD is
    given out only for bytes that can no longer become a character.

    Args:
        tokens: the bytes of each token.
        skip_special_tokens: leave out tokens that mark structure.
        continues_text: the ids go on with a text, so a leading space is theirs. Otherwise a
            tokenizer that puts a space before every text loses it here again.
    """

    def __init__(
        self, tokens: TokenTable, *, skip_special_tokens: bool = True, continues_text: bool = False
    ) -> None:
        self._tokens = tokens
        self.skip_special = skip_special_tokens
        self._strip_space = tokens.strips_leading_space and not continues_text
        self._incomplete = b""
        self._length = 0

    def feed(self, token_ids: Iterable[int]) -> str:
        """The characters that these tokens complete."""
        return "".join([self.feed_token(token_id).text for token_id in token_ids])

    def feed_token(self, token_id: int) -> TokenText:
        """The characters that one token completes, and where it lies in the text."""
        data = self._visible_bytes(token_id)
        if not data:
            return self.no_text()
        if not self._incomplete:
            start = self._length
            return TokenText(self._decode(data), start, self._touched())
        # The first byte alone tells whether the token continues the incomplete character.
        head = self._decode(data[:1])
        start = self._touched() - 1
        text = head + self._decode(data[1:])
        return TokenText(text, start, self._touched())

    def no_text(self) -> TokenText:
        """What a token adds that is left out."""
        return TokenText("", self._length, self._length)

    def _visible_bytes(self, token_id: int) -> bytes:
        if self.skip_special and self._tokens.is_special(token_id):
            return b""
        data = self._tokens.token_bytes(token_id)
        if data and self._strip_space:
            self._strip_space = False
            data = data.removeprefix(b" ")
        return data

    def _decode(self, data: bytes) -> str:
        pending = self._incomplete + data
        text, used = codecs.utf_8_decode(pending, "replace", False)
        self._incomplete = pending[used:]
        self._length += len(text)
        return text

    def _touched(self) -> int:
        """Characters so far, the incomplete one included."""
        return self._length + bool(self._incomplete)

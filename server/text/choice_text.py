"""The text of one choice: what a client sees of the tokens the engine produced."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scheduler.types import TokenLogprobs
from server.text.detokenizer import IncrementalDetokenizer
from server.text.stop_matcher import StopMatcher
from server.text.tokenizer.vocabulary import TokenTable


class TextDelta(NamedTuple):
    """Text that can go to the client, and the tokens it is made of."""

    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """In order, of the tokens whose text begins in this delta; empty unless they were fed."""
    text_offsets: tuple[int, ...] = ()
    """For each of them, the index in the choice's text of the character it begins in."""
    stopped: bool = False
    """A stop string is complete: the choice has ended, and the engine can be told to abort it."""


@dataclass(frozen=True, slots=True)
class _Entry:
    start: int
    end: int
    logprobs: TokenLogprobs


class ChoiceText:
    """Detokenises one choice, cuts it at a stop string and keeps logprobs beside their text.

    With logprobs a delta ends between two tokens, so its entries spell exactly its text. Only a
    stop string can cut within a token: a token that keeps a character brings its entry, one that
    lies wholly in or after the stop string brings none. Tokens without text (special tokens that
    are skipped, an incomplete character at the end) bring none either.

    Args:
        tokens: the bytes of each token.
        stop: stop strings.
        include_stop: keep the stop string.
        skip_special_tokens: leave out tokens that mark structure.
        continues_text: the choice goes on with the prompt's text (completions), so a leading
            space is its own.
    """

    def __init__(
        self,
        tokens: TokenTable,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        continues_text: bool = False,
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(
            tokens, skip_special_tokens=skip_special_tokens, continues_text=continues_text
        )
        self._matcher = StopMatcher(stop, include_stop=include_stop)
        self._entries: deque[_Entry] = deque()
        self._ready = ""
        self._released = 0
        self._every_token = False
        self.completion_tokens = 0
        """Tokens up to and including the one that completed a stop string; the usage to report."""

    @property
    def matched_stop(self) -> str | None:
        """The stop string that ended the choice."""
        return self._matcher.matched

    def echo(
        self, prompt: Sequence[int], hidden: Collection[int], logprobs: Sequence[TokenLogprobs] = ()
    ) -> TextDelta:
        """Begin with the prompt; its special tokens are text, for the client wrote them.

        Stop strings are not looked for in it. With logprobs every token brings its entry from here on, also
        one without text, so that a prompt's entries can be counted off.

        Args:
            prompt: token ids.
            hidden: tokens that the client did not write.
            logprobs: one for each token of the prompt, or none.
        """
        detokenizer, skips = self._detokenizer, self._detokenizer.skip_special
        detokenizer.skip_special = False
        pieces = [
            detokenizer.no_text() if token in hidden else detokenizer.feed_token(token) for token in prompt
        ]
        detokenizer.skip_special = skips
        text = "".join([piece.text for piece in pieces])
        self._released = len(text)
        self._every_token = bool(logprobs)
        offsets = tuple(piece.start for piece in pieces) if logprobs else ()
        return TextDelta(text, tuple(logprobs), offsets)

    def feed(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> TextDelta:
        """Take the next tokens, with one entry for each if logprobs are wanted.

        Tokens after a completed stop string are ignored: the engine made them before it knew.
        """
        entries: Sequence[TokenLogprobs | None] = logprobs or [None] * len(token_ids)
        for token_id, entry in zip(token_ids, entries, strict=True):
            if self.matched_stop is not None:
                break
            self._take(token_id, entry)
        if self.matched_stop is not None:
            return self._release(len(self._ready))
        return self._release(self._whole_tokens())

    def finish(self, ender: TokenLogprobs | None = None) -> TextDelta:
        """The engine has ended the choice: what was held back is text after all.

        ``ender`` is of the token that ended it, which is no text.
        """
        self._ready += self._matcher.finish()
        if self._every_token:
            end = self._released + len(self._ready)
            if ender is not None:
                self._entries.append(_Entry(end, end, ender))
            return self._release(len(self._ready), through=end + 1)
        return self._release(len(self._ready))

    def _take(self, token_id: int, entry: TokenLogprobs | None) -> None:
        self.completion_tokens += 1
        piece = self._detokenizer.feed_token(token_id)
        if entry is not None and (piece.end > piece.start or self._every_token):
            self._entries.append(_Entry(piece.start, piece.end, entry))
        self._ready += self._matcher.feed(piece.text)

    def _whole_tokens(self) -> int:
        """How many of the ready characters belong to tokens that are ready as a whole."""
        if not self._entries:
            return len(self._ready)
        limit = self._released + len(self._ready)
        cut = self._released
        entries = list(self._entries)
        for entry, following in zip(entries, [*entries[1:], None], strict=True):
            if entry.end > limit:
                break
            if following is None or following.start >= entry.end:
                cut = entry.end
        return cut - self._released

    def _release(self, count: int, through: int | None = None) -> TextDelta:
        """The next ``count`` characters, with the tokens that begin in them, or before ``through``."""
        text, self._ready = self._ready[:count], self._ready[count:]
        self._released += count
        out: list[_Entry] = []
        limit = self._released if through is None else through
        while self._entries and self._entries[0].start < limit:
            out.append(self._entries.popleft())
        return TextDelta(
            text,
            tuple(entry.logprobs for entry in out),
            tuple(entry.start for entry in out),
            self.matched_stop is not None,
        )

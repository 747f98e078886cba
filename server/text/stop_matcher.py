"""Stop strings: cutting a text that arrives in pieces at the first of them."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text on until a stop string is complete, wherever the pieces are cut.

    The stop string that is complete first wins, since generation ends there; of several that end
    at the same character, the longest. Text that may yet become a stop string is held back, so no
    part of one is ever given out.

    Args:
        stop: the stop strings, none of them empty.
        include_stop: give out the stop string too.
    """

    def __init__(self, stop: Sequence[str], *, include_stop: bool = False) -> None:
        if "" in stop:
            raise ValueError("a stop string must not be empty")
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text."""

    def feed(self, text: str) -> str:
        """Take the next piece; returns what can be given out. Nothing after a match."""
        if self.matched is not None:
            return ""
        pending = self._held + text
        if (match := self._first_match(pending)) is not None:
            self.matched, start = match
            self._held = ""
            return pending[: start + len(self.matched) if self._include_stop else start]
        free = min((_free_length(pending, stop) for stop in self._stop), default=len(pending))
        self._held = pending[free:]
        return pending[:free]

    def finish(self) -> str:
        """The text has ended: what was held is no stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[str, int] | None:
        found = [(start + len(stop), start, stop) for stop in self._stop if (start := text.find(stop)) >= 0]
        if not found:
            return None
        _, start, stop = min(found)
        return stop, start


def _free_length(text: str, stop: str) -> int:
    """Characters before the longest end of ``text`` that begins ``stop``."""
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0 and not stop.startswith(text[start:]):
        start = text.find(stop[0], start + 1)
    return len(text) if start < 0 else start

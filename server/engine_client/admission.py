"""When a request is refused because too many wait, and when it may come back."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

RATE_WINDOW = 60.0
"""Seconds over which completions are counted."""
SHORTEST_RETRY, LONGEST_RETRY = 1.0, 60.0
"""Bounds of Retry-After, seconds."""


def waiting_requests(choices_of_requests: Iterable[int], max_running: int) -> int:
    """How many of the last requests find no place among ``max_running`` sequences.

    Args:
        choices_of_requests: Unfinished choices of each live request, by arrival. Each needs a sequence.
        max_running: Sequences that run at once. A request with some choices among them isn't waiting.
    """
    places, waiting = max_running, 0
    for choices in choices_of_requests:
        if places <= 0:
            waiting += 1
        places -= choices
    return waiting


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much may wait."""

    requests: int
    tokens: int = 0
    """Of prompts; 0 is no limit. A request that would wait alone is never too long."""

    def allow(self, waiting_prompts: Sequence[int]) -> bool:
        """Whether requests with prompts of so many tokens may wait together; the last one is new."""
        if len(waiting_prompts) > self.requests:
            return False
        return not self.tokens or len(waiting_prompts) < 2 or sum(waiting_prompts) <= self.tokens


class CompletionRate:
    """Requests that end in a second, over the last minute in which there was work.

    Its clock stands still while no request is live: idle time says nothing about speed.
    """

    def __init__(self) -> None:
        self._live = 0
        self._changed_at = 0.0
        self._busy_seconds = 0.0
        self._endings: deque[float] = deque()

    def started(self, now: float) -> None:
        """A request was admitted."""
        self._advance(now)
        self._live += 1

    def ended(self, now: float) -> None:
        """A live request ended, whatever way."""
        self._advance(now)
        self._live -= 1
        self._endings.append(self._busy_seconds)

    def seconds_for(self, requests: int, now: float) -> float:
        """Estimated time until ``requests`` more have ended, as a Retry-After.

        Before the first ending one is taken to be due now, so that the estimate grows with the wait.
        """
        self._advance(now)
        measured = min(self._busy_seconds, RATE_WINDOW)
        return bounded_retry(measured * requests / max(1, len(self._endings)))

    def _advance(self, now: float) -> None:
        if self._live:
            self._busy_seconds += now - self._changed_at
        self._changed_at = now
        while self._endings and self._endings[0] < self._busy_seconds - RATE_WINDOW:
            self._endings.popleft()


def bounded_retry(seconds: float) -> float:
    """``seconds`` as a Retry-After: whole, from 1 to 60."""
    return min(max(float(math.ceil(seconds)), SHORTEST_RETRY), LONGEST_RETRY)

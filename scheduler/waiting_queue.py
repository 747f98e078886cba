"""Sequences that wait for admission, by priority and arrival."""

from __future__ import annotations

import heapq

from scheduler.sequence import Sequence


class WaitingQueue:
    """A heap of precedences with lazy removal: O(log n) to add and take, O(1) to remove."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int]] = []
        self._waiting: dict[tuple[int, int, int], Sequence] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.precedence in self._waiting

    def add(self, sequence: Sequence) -> None:
        """Put ``sequence`` in its place; a preempted one keeps its arrival and so its rank."""
        self._waiting[sequence.precedence] = sequence
        heapq.heappush(self._heap, sequence.precedence)

    def first(self) -> Sequence | None:
        """The next to be admitted, which stays in the queue."""
        while self._heap and self._heap[0] not in self._waiting:
            heapq.heappop(self._heap)
        return self._waiting[self._heap[0]] if self._heap else None

    def remove(self, sequence: Sequence) -> None:
        """Take ``sequence`` out, wherever it stands."""
        del self._waiting[sequence.precedence]

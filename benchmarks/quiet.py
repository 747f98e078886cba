"""When a measurement counts: while the machine was ours."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.results import Sample


def quietest(measure: Callable[[int], Sample], limit: float, retries: int) -> Sample:
    """Measure; again while others took more than ``limit`` of the machine. The quietest try counts.

    Args:
        measure: takes the number of the try, from 0.
        limit: share of the machine's CPU time.
        retries: how often to repeat at most.
    """
    tries = []
    for attempt in range(1 + retries):
        tries.append(measure(attempt))
        if tries[-1].load.others <= limit:
            break
    return min(tries, key=lambda sample: sample.load.others)

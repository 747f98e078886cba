"""Drawing from weights by inverse cumulative distribution."""

from __future__ import annotations

import numpy as np

from engine.sampling.processing import Row

_BLOCK = 256


def draw(weights: Row, uniform: float) -> int:
    """The index i with cumulated(i - 1) <= uniform * total < cumulated(i), in float64.

    Sums blocks first and cumulates only inside the block that is hit: a running sum over a whole
    vocabulary is the slowest step of sampling.

    Args:
        weights: non-negative, not all zero; need not sum to one.
        uniform: in [0, 1).

    Returns:
        An index whose weight is not zero.
    """
    block_ends = np.cumsum(np.add.reduceat(weights, np.arange(0, weights.size, _BLOCK)))
    target = uniform * float(block_ends[-1])
    block = _locate(block_ends, target)
    start = block * _BLOCK
    inside = np.cumsum(weights[start : start + _BLOCK])
    return start + _locate(inside, target - (float(block_ends[block - 1]) if block else 0.0))


def _locate(cumulated: Row, target: float) -> int:
    """First index above ``target``; the last one of weight if rounding put the target at the end."""
    last = np.searchsorted(cumulated, cumulated[-1])
    return int(min(np.searchsorted(cumulated, target, side="right"), last))

"""Which tokens may be drawn.

Tokens are ranked by logit, ties by lowest id. top-k, top-p and min-p each keep a prefix of that one
ranking, so together they keep the shortest of the three: all there is to find is its length.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from engine.sampling.processing import Row
from scheduler.types import SamplingParams


def kept_tokens(scaled: Row, params: SamplingParams) -> NDArray[np.int64] | None:
    """Ids that top_k, then top_p, then min_p keep, in rising order; None if all are kept.

    Each filter sees what the one before left, renormalised, as in transformers and vLLM. At least
    one token is kept.

    Args:
        scaled: logits over temperature, shifted so that the highest is 0.
        params: the filters.
    """
    count = scaled.size
    if 0 < params.top_k < count:
        count = params.top_k
    if params.top_p < 1.0:
        count = _nucleus_size(scaled, count, params.top_p)
    if params.min_p > 0.0:
        count = min(count, int(np.count_nonzero(scaled >= math.log(params.min_p))))
    return None if count == scaled.size else leading_tokens(scaled, count)


def leading_tokens(row: NDArray[np.floating], count: int) -> NDArray[np.int64]:
    """Ids of the ``count`` first of the ranking, in rising order of id."""
    if count >= row.size:
        return np.arange(row.size)
    if count == 0:
        return np.arange(0)
    threshold = np.partition(row, row.size - count)[row.size - count]
    above = np.flatnonzero(row > threshold)
    ties = np.flatnonzero(row == threshold)[: count - above.size]
    return np.sort(np.concatenate((above, ties)))


def _nucleus_size(scaled: Row, limit: int, top_p: float) -> int:
    """How many leading tokens are needed for ``top_p`` of the mass of the first ``limit``.

    The whole vocabulary is never sorted: tokens below a share of (1 - top_p) / size of the mass
    cannot together be more than 1 - top_p of it, so the others are enough.
    """
    if limit < scaled.size:
        highest = _highest(scaled, limit)
        total = np.exp(highest).sum()
    else:
        total = np.exp(scaled).sum()
        highest = np.sort(np.compress(scaled >= np.log((1.0 - top_p) * total / scaled.size), scaled))[::-1]
    cumulated = np.cumsum(np.exp(highest))
    return min(int(np.searchsorted(cumulated, top_p * total)) + 1, cumulated.size)


def _highest(row: Row, count: int) -> Row:
    """The ``count`` highest values, fewer than all, highest first."""
    return np.sort(np.partition(row, row.size - count)[row.size - count :])[::-1]

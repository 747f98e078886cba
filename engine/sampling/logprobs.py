"""Log-probabilities of one sampled token, as the model gave them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.sampling.ranking import leading_tokens
from scheduler.types import TokenLogprobs

FLOOR = -9999.0
"""JSON has no infinity; OpenAI's value for "can't happen"."""


def token_logprobs(raw: NDArray[np.float32], token_id: int, count: int) -> TokenLogprobs:
    """Log-softmax of raw logits (no bias, penalty or temperature), natural, at least -9999.0.

    Args:
        raw: logits, [vocab], highest one finite.
        token_id: the sampled token; its log-probability is given even outside the top.
        count: how many of the most likely tokens; ties go by lowest id.
    """
    row = raw.astype(np.float64)
    highest = row.max()
    normaliser = highest + np.log(np.exp(row - highest).sum())
    top = leading_tokens(row, count)
    ordered = top[np.lexsort((top, -row[top]))]

    def logprob(token: int) -> float:
        return max(float(row[token] - normaliser), FLOOR)

    return TokenLogprobs(
        token_id=token_id,
        logprob=logprob(token_id),
        top=tuple((token, logprob(token)) for token in ordered.tolist()),
    )

"""From logits to tokens.

Each row is worked on alone, in float64, so its token does not depend on its batch mates: the
same request gives the same tokens in any company. Only the argmax, which every row needs (it is the
greedy answer, the highest logit and the check for NaN at once), is taken over the batch.

With native kernels all of it is done by them (engine/sampling/native.py); what is here is what they are
compared with, and what takes over without them.

Order of operations: log-softmax of the raw logits for logprobs; logit_bias; min_tokens bans;
repetition, then presence and frequency penalties; temperature (0 takes the highest, no draw);
top_k; top_p; min_p; one draw by inverse CDF over the kept tokens in rising order of id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from engine.sampling.drawing import draw
from engine.sampling.logprobs import token_logprobs
from engine.sampling.processing import Row, changes_logits, process
from engine.sampling.randomness import uniform
from engine.sampling.ranking import kept_tokens
from scheduler.plan import SampleSpec
from scheduler.types import TokenLogprobs

if TYPE_CHECKING:
    import torch

    from engine.sampling.native import NativeSampler

NO_TOKEN: Final = -1
"""Given instead of a token id for a row that has none to give. Its request must end with an error.

That is the case when the logits hold NaN or +inf or nothing but -inf (broken weights, overflow), or
when bans leave no token. A value and not an exception: one broken row must not cost its batch mates
their iteration. Single -inf logits are fine; such a token is never drawn.
"""

Sampled = tuple[int, TokenLogprobs | None]


def sample(
    logits: torch.Tensor,
    specs: Sequence[SampleSpec],
    eos_token_ids: tuple[int, ...],
    native: NativeSampler | None = None,
) -> list[Sampled]:
    """One token for each row.

    Args:
        logits: [rows, vocab], float32. Not changed.
        specs: how to choose, one for each row.
        eos_token_ids: end-of-sequence tokens, banned before ``min_tokens``.
        native: does the work, if there is one.

    Returns:
        For each row the token id and, where asked for, its logprobs; ``(NO_TOKEN, None)`` for a row
        without a usable distribution.

    Raises:
        ValueError: rows and specs differ in number.
    """
    if len(logits) != len(specs):
        raise ValueError(f"{len(logits)} rows of logits for {len(specs)} sample specs")
    if native is not None:
        return native.sample(logits, specs, eos_token_ids)
    rows: NDArray[np.float32] = logits.numpy(force=True)
    best = rows.argmax(axis=1)
    usable = np.isfinite(rows[np.arange(len(rows)), best])
    return [
        _sample_row(row, int(top), spec, eos_token_ids) if ok else (NO_TOKEN, None)
        for row, top, ok, spec in zip(rows, best, usable, specs, strict=True)
    ]


def _sample_row(
    row: NDArray[np.float32], best: int, spec: SampleSpec, eos_token_ids: tuple[int, ...]
) -> Sampled:
    """``best`` is the row's highest logit, already known to be finite."""
    params = spec.params
    if params.temperature == 0.0 and not changes_logits(spec, eos_token_ids):
        token = best
    else:
        token = _choose(row.astype(np.float64), spec, eos_token_ids)
    if params.logprobs is None or token == NO_TOKEN:
        return token, None
    return token, token_logprobs(row, token, params.logprobs)


def _choose(row: Row, spec: SampleSpec, eos_token_ids: tuple[int, ...]) -> int:
    """Overwrites ``row``."""
    params = spec.params
    process(row, spec, eos_token_ids)
    best = int(row.argmax())
    if not np.isfinite(row[best]):
        return NO_TOKEN
    if params.temperature == 0.0:
        return best
    row -= row[best]
    with np.errstate(over="ignore"):  # a tiny temperature sends all others to -inf, which is right
        row /= params.temperature
    kept = kept_tokens(row, params)
    weights = np.exp(row if kept is None else row[kept])
    index = draw(weights, uniform(params.seed, spec.choice, spec.output_length))
    return index if kept is None else int(kept[index])

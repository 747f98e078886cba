"""What changes logits before a token is chosen: bias, bans and penalties."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from scheduler.plan import SampleSpec

Row = NDArray[np.float64]
"""One row of logits, [vocab]."""


def banned_tokens(spec: SampleSpec, eos_token_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Tokens that would end the sequence before ``min_tokens``.

    Under ``ignore_eos`` end-of-sequence ends nothing, so it is an ordinary token and not banned.
    """
    params = spec.params
    if spec.output_length >= params.min_tokens:
        return ()
    return params.stop_token_ids if params.ignore_eos else (*eos_token_ids, *params.stop_token_ids)


def changes_logits(spec: SampleSpec, eos_token_ids: tuple[int, ...]) -> bool:
    """Whether ``process`` would do anything."""
    return bool(spec.params.needs_history or spec.params.logit_bias or banned_tokens(spec, eos_token_ids))


def process(row: Row, spec: SampleSpec, eos_token_ids: tuple[int, ...]) -> None:
    """Apply, in place and in this order: bias, bans, repetition, presence and frequency penalty.

    The repetition penalty is CTRL's (arXiv 1909.05858) over prompt and output; presence and
    frequency penalties are OpenAI's, over the output only.
    """
    params = spec.params
    if params.logit_bias:
        biased = _existing(params.logit_bias, row.size)
        row[biased] += [params.logit_bias[int(token)] for token in biased]
    row[_existing(banned_tokens(spec, eos_token_ids), row.size)] = -np.inf
    if spec.history is not None:
        _penalise(row, spec, spec.history)


def _penalise(row: Row, spec: SampleSpec, history: tuple[int, ...]) -> None:
    params = spec.params
    if params.repetition_penalty != 1.0:
        seen = _existing(set(history), row.size)
        logits = row[seen]
        row[seen] = np.where(
            logits > 0, logits / params.repetition_penalty, logits * params.repetition_penalty
        )
    if params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        output = _existing(history[spec.prompt_length :], row.size)
        tokens, counts = np.unique(output, return_counts=True)
        row[tokens] -= params.presence_penalty + params.frequency_penalty * counts


def _existing(token_ids: Iterable[int], vocab_size: int) -> NDArray[np.int64]:
    """The ids that the row has: a tokenizer may know more (special) tokens than the model."""
    ids = np.fromiter(token_ids, dtype=np.int64)
    return ids[(ids >= 0) & (ids < vocab_size)]

"""What an iteration's logits are for: tokens to sample, and prompt tokens to score."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from torch import Tensor

from engine.sampled_tokens import sampled_tokens
from engine.sampling.logprobs import FLOOR
from engine.sampling.native import NativeSampler
from scheduler.plan import SampledToken, SampleSpec, ScheduledSequence, ScoredTokens, ScoreSpec
from scheduler.types import SamplingParams, SequenceId, TokenLogprobs

Wanted = tuple[SequenceId, SampleSpec | ScoreSpec]
"""One sequence's consecutive rows of logits: one for a token to sample, one for each token to score."""

_CERTAIN: Final = 1e30
"""Added to a logit, makes its token the one that is taken; log-probabilities are those of the raw logits."""


def wanted_of(sequences: Iterable[ScheduledSequence]) -> list[Wanted]:
    """What the ``sample_rows`` of these sequences' batch are for."""
    return [
        (each.sequence_id, spec)
        for each in sequences
        for spec in (each.score, each.sample)
        if spec is not None
    ]


def rows_of(wanted: Iterable[Wanted]) -> int:
    """Rows of logits."""
    return sum(len(spec.token_ids) if isinstance(spec, ScoreSpec) else 1 for _sequence_id, spec in wanted)


def tokens_and_scores(
    logits: Tensor,
    wanted: Sequence[Wanted],
    eos_token_ids: tuple[int, ...],
    native: NativeSampler | None = None,
) -> tuple[list[SampledToken], list[ScoredTokens]]:
    """Everything that is wanted of float32 ``logits`` [``rows_of(wanted)``, vocabulary], in its order."""
    rows: list[tuple[SequenceId, SampleSpec]] = []
    for sequence_id, spec in wanted:
        if isinstance(spec, ScoreSpec):
            rows += ((sequence_id, _taking(token, spec.top)) for token in spec.token_ids)
        else:
            rows.append((sequence_id, spec))
    made = iter(sampled_tokens(logits, rows, eos_token_ids, native))
    tokens: list[SampledToken] = []
    scores: list[ScoredTokens] = []
    for sequence_id, spec in wanted:
        if isinstance(spec, ScoreSpec):
            scores.append(_scored(sequence_id, [(token, next(made)) for token in spec.token_ids]))
        else:
            tokens.append(next(made))
    return tokens, scores


def _taking(token: int, top: int) -> SampleSpec:
    """Samples a token known beforehand, for its log-probability."""
    params = SamplingParams(max_tokens=1, temperature=0.0, seed=0, logit_bias={token: _CERTAIN}, logprobs=top)
    return SampleSpec(params=params, choice=0, output_length=0, prompt_length=0, history=None)


def _scored(sequence_id: SequenceId, taken: Sequence[tuple[int, SampledToken]]) -> ScoredTokens:
    logprobs = []
    for token, made in taken:
        if made.logprobs is None:
            return ScoredTokens(sequence_id, (), "the prompt could not be scored: the logits were not finite")
        # A logit of -inf stays one whatever is added.
        possible = made.token_id == token
        logprobs.append(made.logprobs if possible else TokenLogprobs(token, FLOOR, made.logprobs.top))
    return ScoredTokens(sequence_id, tuple(logprobs))

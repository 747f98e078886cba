"""Sampling as executors report it: a token for each sequence, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.sampler import NO_TOKEN, sample
from engine.sampling.native import NativeSampler
from scheduler.plan import SampledToken, SampleSpec
from scheduler.types import SequenceId

_NO_TOKEN_ERROR = "no token could be sampled: the logits were not finite, or every token was banned"


def sampled_tokens(
    logits: Tensor,
    wanted: Sequence[tuple[SequenceId, SampleSpec]],
    eos_token_ids: tuple[int, ...],
    native: NativeSampler | None = None,
) -> list[SampledToken]:
    """Sample from float32 ``logits`` [wanted, vocabulary]; ``eos_token_ids`` are banned before min_tokens."""
    drawn = sample(logits, [spec for _sequence_id, spec in wanted], eos_token_ids, native)
    return [
        SampledToken(sequence_id, token, logprobs, _NO_TOKEN_ERROR if token == NO_TOKEN else "")
        for (sequence_id, _spec), (token, logprobs) in zip(wanted, drawn, strict=True)
    ]

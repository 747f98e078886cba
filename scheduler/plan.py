"""An iteration's plan and its result: the two values that pass between scheduler and executor."""

from __future__ import annotations

import msgspec

from scheduler.types import SamplingParams, SequenceId, TokenLogprobs


class SampleSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Asks for one token to be sampled from the logits after a sequence's last scheduled token."""

    params: SamplingParams
    choice: int
    """Choice index within the request: part of the random key."""
    output_length: int
    """Output tokens so far: the random key's position, and what min_tokens is compared with."""
    prompt_length: int
    """Where the output begins in ``history``."""
    history: tuple[int, ...] | None
    """Prompt and output so far, only for requests with penalties (``params.needs_history``)."""


class ScheduledSequence(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The tokens of one sequence to compute in this iteration (vLLM v1: schedule tokens, not phases)."""

    sequence_id: SequenceId
    token_ids: tuple[int, ...]
    """Tokens to compute, at least one."""
    start: int
    """Position of the first of them; the KV of everything before it is in the pages."""
    page_table: tuple[int, ...]
    """Page ids covering positions 0 .. start + len(token_ids) - 1, in order."""
    sample: SampleSpec | None
    """None while tokens known already remain to be computed (a prefill chunk)."""


class IterationPlan(msgspec.Struct, frozen=True, gc=False):
    """Everything an executor needs for one iteration."""

    iteration: int
    sequences: tuple[ScheduledSequence, ...]

    @property
    def num_tokens(self) -> int:
        """Rows of the dense batch."""
        return sum(len(sequence.token_ids) for sequence in self.sequences)


class SampledToken(msgspec.Struct, frozen=True, gc=False):
    """One sampled token."""

    sequence_id: SequenceId
    token_id: int
    logprobs: TokenLogprobs | None = None
    error: str = ""
    """Not empty: no token could be sampled (say, the logits were not finite); the sequence ends."""


class IterationResult(msgspec.Struct, frozen=True, gc=False):
    """What the executor computed: one token for each sequence whose ``sample`` was set, in plan order."""

    iteration: int
    tokens: tuple[SampledToken, ...]

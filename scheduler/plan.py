"""An iteration's plan and its result: the two values that pass between scheduler and executor."""

from __future__ import annotations

import enum

import msgspec

from scheduler.tier import Tier
from scheduler.types import SamplingParams, SequenceId, TokenLogprobs
from scheduler.work import Stage


class PlanMode(enum.StrEnum):
    """How host rows advance in an iteration (docs/overlap-planner.md)."""

    ACCELERATOR_ONLY = "accelerator-only"
    """They pause."""
    ASYNC_OVERLAP = "async-overlap"
    """They ride with the main batch only (APEX, arXiv 2506.03296): no catch-up passes."""
    CATCH_UP = "catch-up"
    """They ride, and take a bounded number of passes of their own."""
    ASYMMETRIC_PIPELINE = "asymmetric-pipeline"
    """Two waves and a pass in every gap (NEO, arXiv 2411.01142): a whole token an iteration."""


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


class ScoreSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Asks how likely the prompt's own tokens were, under the logits before each of them."""

    first: int
    """The first scheduled token after which logits are wanted: an index into ``token_ids``."""
    token_ids: tuple[int, ...]
    """What follows it and those after it in the prompt, at least one."""
    top: int
    """How many of the most likely tokens are wanted beside each."""


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
    score: ScoreSpec | None = None
    tier: Tier = Tier.HOST
    """Whose pages those are. Whatever is scheduled here is computed by the accelerator, or by the CPU where
    there is none."""


class HostRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A host-tier sequence that decodes with its attention on the CPU.

    Its token may take several iterations. The executor keeps what it has of a row from plan to plan; a row
    that a plan no longer lists is dropped, and its pages are in use until ``IterationResult.dropped`` has it.
    """

    sequence_id: SequenceId
    token_id: int
    """The last known token: computed next, or already under way."""
    position: int
    """Its position; the KV of everything before it is in the pages."""
    page_table: tuple[int, ...]
    """Host pages covering ``position``, and the position after it if ``continues``."""
    wave: int | None
    """Rows of one wave go through the layers together. Looked at when a row begins a token; with None it does
    not begin."""
    sample: SampleSpec
    """For the token after ``token_id``: at most one is sampled in an iteration."""
    continues: bool
    """Whether that token, once sampled, may be begun in the same iteration."""


class Migration(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Pages to be copied to the other tier. Takes as long as it takes: ``IterationResult.migrated`` tells.

    The sequence is in no plan meanwhile, and all its pages, old and new, are in use.
    """

    sequence_id: SequenceId
    source: Tier
    source_pages: tuple[int, ...]
    target_pages: tuple[int, ...]


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """How an iteration's host rows are hidden behind its main batch, and why so."""

    mode: PlanMode
    passes: int = 0
    """Catch-up passes the accelerator may take at most."""
    waves: int = 1
    """Into how many waves the host rows are divided."""
    host_rows: int | None = None
    """Host rows that take part, in order of arrival; None for all."""
    prefill_tokens: int | None = None
    """Prompt tokens in this iteration at most; None: as many as the batch has room for."""
    reason: str = ""
    seconds: float = 0.0
    """Predicted time of the iteration; 0 where nothing was predicted."""
    rate: float = 0.0
    """Predicted tokens a second."""
    rejected: tuple[tuple[str, float], ...] = ()
    """Other candidates, by name, with their predicted rates."""


ACCELERATOR_ONLY = Overlap(mode=PlanMode.ACCELERATOR_ONLY, reason="no host rows")


class IterationPlan(msgspec.Struct, frozen=True, gc=False):
    """Everything an executor needs for one iteration."""

    iteration: int
    sequences: tuple[ScheduledSequence, ...]
    """The main batch: one token or a chunk of each."""
    host_rows: tuple[HostRow, ...] = ()
    """All of them, whether they advance in this iteration or pause."""
    migrations: tuple[Migration, ...] = ()
    """Those that begin."""
    overlap: Overlap = ACCELERATOR_ONLY

    @property
    def num_tokens(self) -> int:
        """Rows of the main batch."""
        return sum(len(sequence.token_ids) for sequence in self.sequences)


class SampledToken(msgspec.Struct, frozen=True, gc=False):
    """One sampled token."""

    sequence_id: SequenceId
    token_id: int
    logprobs: TokenLogprobs | None = None
    error: str = ""
    """Not empty: no token could be sampled (say, the logits were not finite); the sequence ends."""


class ScoredTokens(msgspec.Struct, frozen=True, gc=False):
    """Answers a ``ScoreSpec``."""

    sequence_id: SequenceId
    logprobs: tuple[TokenLogprobs, ...]
    error: str = ""
    """Not empty: the logits were not finite; the sequence ends."""


class WaveProgress(msgspec.Struct, frozen=True, gc=False):
    """Where a wave of host rows is at the end of an iteration."""

    wave: int
    rows: int
    tokens: int
    """KV tokens its rows attend to, in total."""
    cursor: int
    """Layer whose attention it is in or has done; -1 before its token's first one."""
    ready: bool
    """Whether that attention is done."""


class Timing(msgspec.Struct, frozen=True, gc=False):
    """What was measured in one iteration. Seconds."""

    total: float
    """From submission to result."""
    stages: dict[Stage, float]
    """Busy time by stage."""
    predicted: dict[Stage, float]
    """What the cost model, uncorrected, gives for that same work."""
    accelerator_idle: float
    """Compute stream without work, within the iteration."""
    waited_for_host: float
    """The part of that in which an operation stood waiting for an event: the copy of a result that the CPU
    had ready. For the CPU itself nothing on the accelerator can wait."""
    host_idle: float
    """Host attention without work while there were host rows."""
    lead: float = 0.0
    """How long before a unit begins a result had better be there to go with it: when that is decided, and by
    how much results are late now and then. 0 if that is not known."""
    passes: int = 0
    """Catch-up passes taken."""
    late: int = 0
    """Host rows whose layer the main batch passed while their result was not there."""


class IterationResult(msgspec.Struct, frozen=True, gc=False):
    """What the executor computed."""

    iteration: int
    tokens: tuple[SampledToken, ...]
    """One for each sequence whose ``sample`` was set, in plan order; then those of host rows that passed the
    last layer."""
    dropped: tuple[SequenceId, ...] = ()
    """Host rows no longer listed whose work has ended: their pages may be freed."""
    migrated: tuple[SequenceId, ...] = ()
    """Migrations that are done."""
    waves: tuple[WaveProgress, ...] = ()
    timing: Timing | None = None
    scores: tuple[ScoredTokens, ...] = ()
    """One for each sequence whose ``score`` was set."""

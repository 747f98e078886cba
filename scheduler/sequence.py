"""One choice of one request on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.plan import SampleSpec, ScoreSpec
from scheduler.prefix_index import Parent
from scheduler.tier import Tier
from scheduler.types import FinishReason, Request, SequenceId, TokenLogprobs


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens known, tokens computed, and the pages that hold their KV.

    ``computed`` counts the leading tokens whose KV is in ``pages``. A sequence wants
    ``len(tokens) - computed`` more: many for a new prompt or after preemption, one while it
    decodes. There is no other state that says which phase it is in. All its pages are in ``tier``.
    """

    id: SequenceId
    request: Request
    index: int
    arrival: int
    tokens: list[int]
    salt: str
    computed: int = 0
    tier: Tier = Tier.HOST
    pages: list[int] = field(default_factory=list)
    """Changed only through ``hold`` and ``extend``."""
    indexed_pages: int = 0
    """Leading pages that were offered to the prefix index."""
    indexed_tail: Parent = ""
    """The prefix those pages make; the salt while there are none."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache at first admission."""
    scheduled_at: float = 0.0
    """When that was."""
    reported: bool = False
    """Whether an output told the server ``cached_tokens`` and ``scheduled_at``."""
    in_flight: bool = False
    """Part of a submitted plan: its pages are freed at commit, not before."""
    aborted: bool = False
    """To be ended at commit."""
    listed: bool = False
    """A host row of the executor: its pages are free only after the executor has dropped it."""
    away: bool = False
    """In no plan, because its drop or its move to the other tier is under way."""
    wave: int | None = None
    """The last one it was given as a host row."""
    swapped_out: int | None = None
    """Iteration in which it last had to leave the device."""
    followers: list[Sequence] = field(default_factory=list)
    """The other choices of the request, until the prompt's pages can be shared."""
    scores: list[TokenLogprobs] = field(default_factory=list)
    """Of the prompt's tokens but the first, as far as they are known; empty unless ``scored``."""
    prompt_length: int = field(init=False)
    """Tokens of the prompt."""
    scored: bool = field(init=False)
    """Whether the log-probabilities of its prompt are wanted: the first choice's are those of all."""
    _table: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.prompt_length = len(self.request.prompt_token_ids)
        self.scored = self.request.sampling.prompt_logprobs is not None and self.index == 0

    @property
    def precedence(self) -> tuple[int, int, int]:
        """Sort key: lower is served first and preempted last."""
        return (self.request.priority, self.arrival, self.index)

    @property
    def output_length(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_length

    @property
    def remaining(self) -> int:
        """Known tokens not yet computed."""
        return len(self.tokens) - self.computed

    @property
    def reusable(self) -> int:
        """Known tokens whose KV may come from the prefix cache.

        The last one stays to be computed, since its logits are wanted; so do those whose logits score others.
        """
        if self.scored and len(self.scores) + 1 < self.prompt_length:
            return len(self.scores)
        return len(self.tokens) - 1

    def hold(self, pages: list[int]) -> None:
        """Have these pages, and no others."""
        self.pages = pages
        self._table = ()

    def extend(self, pages: list[int]) -> None:
        """Have these pages too."""
        self.pages += pages

    def page_table(self, count: int) -> tuple[int, ...]:
        """The first ``count`` pages; made anew only when that many are asked for the first time."""
        if len(self._table) != count:
            self._table = tuple(self.pages[:count])
        return self._table

    def sample_spec(self) -> SampleSpec:
        """How the token after the last known one is to be sampled."""
        params = self.request.sampling
        return SampleSpec(
            params=params,
            choice=self.index,
            output_length=self.output_length,
            prompt_length=self.prompt_length,
            history=tuple(self.tokens) if params.needs_history else None,
        )

    def score_spec(self, count: int) -> ScoreSpec | None:
        """What to score with the next ``count`` tokens."""
        begin = max(self.computed, len(self.scores))
        end = min(self.computed + count, self.prompt_length - 1)
        top = self.request.sampling.prompt_logprobs
        if top is None or not self.scored or begin >= end:
            return None
        followers = self.request.prompt_token_ids[begin + 1 : end + 1]
        return ScoreSpec(first=begin - self.computed, token_ids=followers, top=top)

    def finish_reason(self, eos_token_ids: frozenset[int], context_length: int) -> FinishReason | None:
        """Whether the last token ends the sequence, and why."""
        params = self.request.sampling
        last = self.tokens[-1]
        ends = last in params.stop_token_ids or (last in eos_token_ids and not params.ignore_eos)
        if ends and self.output_length >= params.min_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.tokens_left(context_length) <= 0 else None

    def tokens_left(self, context_length: int) -> int:
        """Output tokens it may still get."""
        return min(self.request.sampling.max_tokens - self.output_length, context_length - len(self.tokens))

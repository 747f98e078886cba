"""Continuous batching: which sequences run, which wait, and which tokens are computed next.

``schedule`` and ``commit`` alternate; requests and aborts may come at any time between.
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduler.admission import Admission
from scheduler.cost_model import CostModel
from scheduler.foresight import Foresight
from scheduler.limits import Limits
from scheduler.messages import SchedulerStats
from scheduler.plan import (
    HostRow,
    IterationPlan,
    IterationResult,
    Overlap,
    SampledToken,
    ScheduledSequence,
    ScoredTokens,
    Timing,
)
from scheduler.planner import Planner, RidingPlanner
from scheduler.residents import Residents
from scheduler.room import Room
from scheduler.sequence import Sequence
from scheduler.statistics import scheduler_stats
from scheduler.tier import Tier
from scheduler.types import ChoiceOutput, FinishReason, Request, RequestId, SequenceId

__all__ = ["Limits", "Scheduler"]


SCORED_ROWS = 128
"""Prompt tokens of one sequence that are scored in an iteration at most."""


class Scheduler:
    """First come, first served within a priority, for a place as for room on the device."""

    def __init__(
        self, limits: Limits, planner: Planner | None = None, costs: CostModel | None = None
    ) -> None:
        """Without a planner host rows ride in one wave; without costs copying beats computing again.

        Raises:
            ValueError: the limits leave a sequence no way to finish.
        """
        limits.check()
        self._limits = limits
        self._eos = frozenset(limits.eos_token_ids)
        self._residents = Residents(limits)
        self._room = Room(limits, self._residents, costs)
        self._admission = Admission(limits, self._residents)
        self._foresight = Foresight(limits, self._residents, self._admission, planner or RidingPlanner())
        self._requests: dict[RequestId, dict[int, Sequence]] = {}
        self._next_sequence = 0
        self._next_arrival = 0
        self._iterations = 0
        self._now = 0.0
        self._plan: IterationPlan | None = None
        """Submitted, not committed."""
        self._planned: dict[SequenceId, Sequence] = {}
        """Whom it has something to compute for."""
        self._timing: Timing | None = None
        self._host_tokens = 0
        """Sampled for host rows in the last iteration."""
        self._prefix_queries = 0
        self._prefix_hits = 0

    # -- requests come and go

    def add(self, request: Request) -> None:
        """Queue a request: its first choice now, the others when they can share its prompt's pages.

        Raises:
            ValueError: the request breaks its contract (scheduler.types.Request).
        """
        if request.request_id in self._requests:
            raise ValueError(f"request {request.request_id} is live already")
        if not 1 <= len(request.prompt_token_ids) < self._limits.context_length or request.n < 1:
            raise ValueError("a request needs n >= 1 and a prompt of 1 to context_length - 1 tokens")
        salt = request.cache_salt if self._limits.prefix_caching else f"request {request.request_id}"
        first, *others = (self._new_sequence(request, index, salt) for index in range(request.n))
        first.followers = others
        self._next_arrival += 1
        self._requests[request.request_id] = {sequence.index: sequence for sequence in (first, *others)}
        self._residents.waiting.add(first)

    def abort(self, request_id: RequestId, index: int | None = None) -> tuple[ChoiceOutput, ...]:
        """End a request, or one choice of it; unknown ones are ignored.

        Returns the terminal outputs of choices ended now. A choice in flight ends at commit.
        """
        live = self._requests.get(request_id, {})
        chosen = [sequence for sequence in live.values() if index is None or sequence.index == index]
        outputs = []
        for sequence in chosen:
            if sequence.in_flight:
                sequence.aborted = True
            else:
                outputs.append(self._end(sequence, FinishReason.ABORT))
        return tuple(outputs)

    def forget_prefixes(self) -> None:
        """Give up the pages that are kept for their prefix only."""
        self._residents.tiers.forget_prefixes()

    @property
    def has_requests(self) -> bool:
        """Whether any request is live."""
        return bool(self._requests)

    # -- one iteration

    def schedule(self, now: float = 0.0) -> IterationPlan | None:
        """The next iteration's plan, or None if there is nothing to compute.

        Decoding sequences come first, then prompts by precedence, then new admissions, so that a
        long prompt never holds up those who are already talking. The plan is empty where only drops or
        moves are under way, for the executor to report them.
        """
        if self._plan is not None:
            raise RuntimeError("the previous plan has not been committed")
        self._now = now
        residents = self._residents
        enough = self._room.make(self._iterations) or not self._can_go_on()
        if enough:
            self._admission.swap_in(self._iterations)
        overlap = self._foresight.choose()
        batch = self._main_batch(overlap.prefill_tokens, admit=enough)
        rows = list(self._host_rows())
        if not batch and not rows and not residents.under_way:
            return None
        overlap = self._foresight.confirm(bool(rows), bool(batch))
        self._iterations += 1
        self._plan = IterationPlan(
            iteration=self._iterations,
            sequences=tuple(self._scheduled(*pair) for pair in batch),
            host_rows=self._row_entries(rows, overlap),
            migrations=residents.take_migrations(),
            overlap=overlap,
        )
        self._foresight.planned(self._plan)
        self._planned = {sequence.id: sequence for sequence, _count in batch}
        for sequence in self._planned.values():
            sequence.in_flight = True
        for row in rows:
            row.listed = True
            self._planned[row.id] = row
        return self._plan

    def think(self) -> None:
        """While the plan is being computed, let the planner choose for the next one."""
        if self._plan is not None and self._limits.has_device:
            self._foresight.think(self._plan)

    def commit(self, plan: IterationPlan, result: IterationResult) -> tuple[ChoiceOutput, ...]:
        """Take in what the executor computed for ``plan``; the outputs are for the server."""
        planned, self._planned, self._plan = self._planned, {}, None
        sampled = {token.sequence_id: token for token in result.tokens}
        scored = {scores.sequence_id: scores for scores in result.scores}
        outputs: list[ChoiceOutput] = []
        for scheduled in plan.sequences:
            sequence = planned[scheduled.sequence_id]
            sequence.in_flight = False
            if sequence.aborted:
                outputs.append(self._end(sequence, FinishReason.ABORT))
            else:
                scores = scored.get(sequence.id)
                outputs += self._advance(sequence, len(scheduled.token_ids), sampled.get(sequence.id), scores)
        self._host_tokens = 0
        for row in plan.host_rows:
            sequence, token = planned[row.sequence_id], sampled.get(row.sequence_id)
            if token is not None and not sequence.away:  # an aborted row's token is nobody's
                self._host_tokens += 1
                outputs += self._advance(sequence, 1, token)
        for sequence_id in result.dropped:
            self._residents.dropped(sequence_id)
        for sequence_id in result.migrated:
            self._residents.migrated(sequence_id)
        self._timing = result.timing
        self._foresight.learn(plan, result)
        return tuple(outputs)

    def stats(self, plan: IterationPlan | None, seconds: float) -> SchedulerStats:
        """The state now, and what ``plan``, the last one, which took ``seconds``, computed."""
        return scheduler_stats(
            self._residents,
            self._limits,
            plan,
            seconds=seconds,
            host_tokens=self._host_tokens,
            timing=self._timing,
            prefix=(self._prefix_queries, self._prefix_hits),
        )

    # -- what a plan is made of

    def _main_batch(self, prefill_tokens: int | None, admit: bool) -> list[tuple[Sequence, int]]:
        """Who is computed in one batch, and how many tokens of each."""
        budget = self._limits.max_batch_tokens
        batch: list[tuple[Sequence, int]] = []
        prompts: list[Sequence] = []
        for sequence in self._residents.running:
            if not self._takes_part(sequence) or self._residents.is_host_row(sequence):
                continue
            if sequence.remaining > 1:
                prompts.append(sequence)
            elif budget > 0:
                batch.append((sequence, 1))
                budget -= 1
        if prefill_tokens is not None:
            budget = min(budget, prefill_tokens)
        for sequence in prompts:
            if budget == 0:
                break
            batch.append((sequence, self._chunk(sequence, budget)))
            budget -= batch[-1][1]
        while admit and budget > 0 and (admitted := self._admit()) is not None:
            if not admitted.away and not self._residents.is_host_row(admitted):
                batch.append((admitted, self._chunk(admitted, budget)))
                budget -= batch[-1][1]
        return batch

    def _chunk(self, sequence: Sequence, budget: int) -> int:
        """How many tokens of a prompt to compute. A row of logits is large, so scored ones come by fewer."""
        most = min(budget, SCORED_ROWS) if sequence.scored else budget
        return min(sequence.remaining, most)

    def _takes_part(self, sequence: Sequence) -> bool:
        """Whether there is something to compute for a running sequence now, and a page for it."""
        tiers = self._residents.tiers
        return (
            not sequence.away
            and self._limits.decodes_in(sequence.tier)
            and tiers.of(sequence).covers(sequence)
        )

    def _can_go_on(self) -> bool:
        """Whether anything will happen if nobody is admitted."""
        return self._residents.under_way or any(map(self._takes_part, self._residents.running))

    def _host_rows(self) -> Iterator[Sequence]:
        residents = self._residents
        if not residents.has_host_rows:
            return iter(())
        return (one for one in residents.running if residents.is_host_row(one) and self._takes_part(one))

    def _admit(self) -> Sequence | None:
        sequence = self._admission.admit()
        if sequence is not None and sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            sequence.scheduled_at = self._now
            self._prefix_queries += sequence.prompt_length
            self._prefix_hits += sequence.computed
        return sequence

    def _scheduled(self, sequence: Sequence, count: int) -> ScheduledSequence:
        end = sequence.computed + count
        return ScheduledSequence(
            sequence_id=sequence.id,
            token_ids=tuple(sequence.tokens[sequence.computed : end]),
            start=sequence.computed,
            page_table=sequence.page_table(self._residents.tiers.of(sequence).pages_for(end)),
            sample=sequence.sample_spec() if end == len(sequence.tokens) else None,
            score=sequence.score_spec(count) if sequence.scored else None,
            tier=sequence.tier,
        )

    def _row_entries(self, rows: list[Sequence], overlap: Overlap) -> tuple[HostRow, ...]:
        waves = self._foresight.waves(rows, overlap)
        for row in rows:
            wave = waves.get(row.id)
            row.wave = row.wave if wave is None else wave
        return tuple(self._row_entry(row, waves.get(row.id)) for row in rows)

    def _row_entry(self, row: Sequence, wave: int | None) -> HostRow:
        pages = self._residents.tiers[Tier.HOST]
        ahead = pages.pages_for(len(row.tokens) + 1)
        continues = len(row.pages) >= ahead and row.tokens_left(self._limits.context_length) > 1
        return HostRow(
            sequence_id=row.id,
            token_id=row.tokens[-1],
            position=row.computed,
            page_table=row.page_table(ahead if continues else pages.pages_for(len(row.tokens))),
            wave=wave,
            sample=row.sample_spec(),
            continues=continues,
        )

    # -- sequences

    def _new_sequence(self, request: Request, index: int, salt: str) -> Sequence:
        self._next_sequence += 1
        return Sequence(
            id=SequenceId(self._next_sequence),
            request=request,
            index=index,
            arrival=self._next_arrival,
            tokens=list(request.prompt_token_ids),
            salt=salt,
            indexed_tail=salt,
        )

    def _advance(
        self, sequence: Sequence, count: int, token: SampledToken | None, scores: ScoredTokens | None = None
    ) -> tuple[ChoiceOutput, ...]:
        """``count`` tokens of a sequence were computed, perhaps scored, and the next one sampled."""
        if token is not None and token.error:
            return (self._fail(sequence, token.error),)
        if scores is not None:
            if scores.error:
                return (self._fail(sequence, scores.error),)
            sequence.scores += scores.logprobs
        sequence.computed += count
        self._residents.tiers.of(sequence).index_computed(sequence)
        if token is not None:
            return (self._append(sequence, token),)
        return () if sequence.reported else (self._output(sequence, None),)

    def _append(self, sequence: Sequence, token: SampledToken) -> ChoiceOutput:
        sequence.tokens.append(token.token_id)
        self._queue_followers(sequence)
        reason = sequence.finish_reason(self._eos, self._limits.context_length)
        if reason is not None:
            return self._end(sequence, reason, token)
        return self._output(sequence, token)

    def _fail(self, sequence: Sequence, error: str) -> ChoiceOutput:
        """End a sequence whose computation went wrong; nobody may find what it computed."""
        self._residents.tiers.of(sequence).forget(sequence)
        return self._end(sequence, FinishReason.ERROR, error=error)

    def _end(
        self, sequence: Sequence, reason: FinishReason, token: SampledToken | None = None, error: str = ""
    ) -> ChoiceOutput:
        self._residents.end(sequence)
        self._queue_followers(sequence)
        request_id = sequence.request.request_id
        del self._requests[request_id][sequence.index]
        if not self._requests[request_id]:
            del self._requests[request_id]
        return self._output(sequence, token, reason, error)

    def _queue_followers(self, sequence: Sequence) -> None:
        """Queue the other choices once the prompt's pages are there to share.

        If the first choice ends before that, the next one takes over its part.
        """
        if not sequence.followers:
            return
        live = self._requests[sequence.request.request_id]
        followers = [follower for follower in sequence.followers if follower.index in live]
        sequence.followers = []
        if sequence.output_length == 0 and followers:
            followers[0].followers = followers[1:]
            followers = followers[:1]
        for follower in followers:
            self._residents.waiting.add(follower)

    def _output(
        self,
        sequence: Sequence,
        token: SampledToken | None,
        reason: FinishReason | None = None,
        error: str = "",
    ) -> ChoiceOutput:
        first = not sequence.reported and sequence.cached_tokens is not None
        cached = min(sequence.cached_tokens or 0, sequence.prompt_length) if first else 0
        scores = sequence.scores if token is not None and sequence.output_length == 1 else ()
        sequence.reported = True
        return ChoiceOutput(
            request_id=sequence.request.request_id,
            index=sequence.index,
            token_ids=() if token is None else (token.token_id,),
            logprobs=() if token is None or token.logprobs is None else (token.logprobs,),
            prompt_logprobs=tuple(scores),
            finish_reason=reason,
            cached_tokens=cached,
            scheduled_at=sequence.scheduled_at if first else None,
            tier=sequence.tier if token is not None and self._limits.has_device else None,
            error=error,
        )

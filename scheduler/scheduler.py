"""Continuous batching: which sequences run, which wait, and which tokens are computed next.

``schedule`` and ``commit`` alternate; requests and aborts may come at any time between.
"""

from __future__ import annotations

import bisect

import msgspec

from scheduler.messages import SchedulerStats
from scheduler.plan import IterationPlan, IterationResult, SampledToken, ScheduledSequence
from scheduler.sequence import Sequence
from scheduler.sequence_pages import SequencePages
from scheduler.types import ChoiceOutput, FinishReason, Request, RequestId, SequenceId
from scheduler.waiting_queue import WaitingQueue


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler may hand out."""

    num_pages: int
    page_size: int
    """Tokens in a page."""
    max_running: int
    """Sequences that hold pages at once."""
    max_batch_tokens: int
    """Tokens computed in one iteration."""
    context_length: int
    """Tokens one sequence may hold; its pages must fit the pool, so that any one can finish."""
    eos_token_ids: tuple[int, ...] = ()
    prefix_caching: bool = True
    """Share prefix pages between requests; the choices of one request always share."""


class Scheduler:
    """First come, first served within a priority; preemption by recomputation, last come first."""

    def __init__(self, limits: Limits) -> None:
        if limits.context_length > limits.num_pages * limits.page_size:
            raise ValueError("the pages can't hold one sequence of the context length")
        if min(limits.max_running, limits.max_batch_tokens) < 1:
            raise ValueError("max_running and max_batch_tokens must be at least 1")
        self._limits = limits
        self._eos = frozenset(limits.eos_token_ids)
        self._pages = SequencePages(limits.num_pages, limits.page_size)
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []
        self._requests: dict[RequestId, dict[int, Sequence]] = {}
        self._next_sequence = 0
        self._next_arrival = 0
        self._in_flight: dict[SequenceId, Sequence] = {}
        self._iterations = 0
        self._preemptions = 0
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
        self._waiting.add(first)

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

    @property
    def has_requests(self) -> bool:
        """Whether any request is live."""
        return bool(self._requests)

    # -- one iteration

    def schedule(self) -> IterationPlan | None:
        """The next iteration's plan, or None if there is nothing to compute.

        Decoding sequences come first, then prompts by precedence, then new admissions, so that a
        long prompt never holds up those who are already talking.
        """
        if self._in_flight:
            raise RuntimeError("the previous plan has not been committed")
        preempted = self._make_room()
        budget = self._limits.max_batch_tokens
        chosen: list[tuple[Sequence, int]] = []
        for sequence in sorted(self._running, key=lambda sequence: sequence.remaining > 1):
            if budget == 0:
                break
            chosen.append((sequence, min(sequence.remaining, budget)))
            budget -= chosen[-1][1]
        while budget > 0 and not preempted and (admitted := self._admit()) is not None:
            chosen.append((admitted, min(admitted.remaining, budget)))
            budget -= chosen[-1][1]
        if not chosen:
            return None
        self._iterations += 1
        for sequence, _count in chosen:
            sequence.in_flight = True
            self._in_flight[sequence.id] = sequence
        return IterationPlan(self._iterations, tuple(self._scheduled(*pair) for pair in chosen))

    def commit(self, plan: IterationPlan, result: IterationResult) -> tuple[ChoiceOutput, ...]:
        """Take in what the executor computed for ``plan``; the outputs are for the server."""
        sampled = {token.sequence_id: token for token in result.tokens}
        outputs: list[ChoiceOutput] = []
        for scheduled in plan.sequences:
            sequence = self._in_flight.pop(scheduled.sequence_id)
            sequence.in_flight = False
            if sequence.aborted:
                outputs.append(self._end(sequence, FinishReason.ABORT))
                continue
            token = sampled.get(sequence.id)
            if token is not None and token.error:
                outputs.append(self._fail(sequence, token.error))
                continue
            sequence.computed += len(scheduled.token_ids)
            self._pages.index_computed(sequence)
            if token is not None:
                outputs.append(self._append(sequence, token))
        return tuple(outputs)

    def stats(self, plan: IterationPlan | None, seconds: float) -> SchedulerStats:
        """The state now, and what ``plan``, which took ``seconds``, computed."""
        scheduled = plan.sequences if plan is not None else ()
        decoding = sum(one.sample is not None and one.sample.output_length > 0 for one in scheduled)
        return SchedulerStats(
            sequences_running=len(self._running),
            sequences_waiting=len(self._waiting),
            sequences_prefilling=sum(sequence.remaining > 1 for sequence in self._running),
            host_pages_used=self._pages.pool.held,
            host_pages_cached=self._pages.pool.cached,
            preemptions_total=self._preemptions,
            prefix_queries_total=self._prefix_queries,
            prefix_hits_total=self._prefix_hits,
            prefill_tokens=sum(len(one.token_ids) for one in scheduled) - decoding,
            decode_tokens=decoding,
            iteration_seconds=seconds,
        )

    # -- pages

    def _make_room(self) -> bool:
        """Grow every running sequence to its known tokens, preempting from the last to come."""
        preempted = False
        position = 0
        while position < len(self._running):
            if self._pages.grow(self._running[position]):
                position += 1
            else:
                self._preempt(self._running[-1])
                preempted = True
        return preempted

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._pages.release(sequence)
        self._waiting.add(sequence)
        self._preemptions += 1

    def _admit(self) -> Sequence | None:
        """Move the first waiting sequence to the running ones, if it fits.

        A page of headroom for each running sequence keeps a newcomer from being preempted by the
        very next token of an older one.
        """
        sequence = self._waiting.first()
        if sequence is None or len(self._running) >= self._limits.max_running:
            return None
        if not self._pages.admit(sequence, headroom=len(self._running)):
            return None
        self._waiting.remove(sequence)
        bisect.insort(self._running, sequence, key=lambda sequence: sequence.precedence)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            self._prefix_queries += sequence.prompt_length
            self._prefix_hits += sequence.computed
        return sequence

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

    def _scheduled(self, sequence: Sequence, count: int) -> ScheduledSequence:
        end = sequence.computed + count
        return ScheduledSequence(
            sequence_id=sequence.id,
            token_ids=tuple(sequence.tokens[sequence.computed : end]),
            start=sequence.computed,
            page_table=tuple(sequence.pages[: self._pages.pages_for(end)]),
            sample=sequence.sample_spec() if end == len(sequence.tokens) else None,
        )

    def _append(self, sequence: Sequence, token: SampledToken) -> ChoiceOutput:
        sequence.tokens.append(token.token_id)
        self._queue_followers(sequence)
        reason = sequence.finish_reason(self._eos, self._limits.context_length)
        if reason is not None:
            return self._end(sequence, reason, token)
        return self._output(sequence, token)

    def _fail(self, sequence: Sequence, error: str) -> ChoiceOutput:
        """End a sequence whose computation went wrong; nobody may find what it computed."""
        self._pages.forget(sequence)
        return self._end(sequence, FinishReason.ERROR, error=error)

    def _end(
        self, sequence: Sequence, reason: FinishReason, token: SampledToken | None = None, error: str = ""
    ) -> ChoiceOutput:
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        elif sequence in self._running:
            self._running.remove(sequence)
            self._pages.release(sequence)
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
        live = self._requests[sequence.request.request_id]
        followers = [follower for follower in sequence.followers if follower.index in live]
        sequence.followers = []
        if sequence.output_length == 0 and followers:
            followers[0].followers = followers[1:]
            followers = followers[:1]
        for follower in followers:
            self._waiting.add(follower)

    def _output(
        self,
        sequence: Sequence,
        token: SampledToken | None,
        reason: FinishReason | None = None,
        error: str = "",
    ) -> ChoiceOutput:
        cached = 0 if sequence.reported else min(sequence.cached_tokens or 0, sequence.prompt_length)
        sequence.reported = True
        return ChoiceOutput(
            request_id=sequence.request.request_id,
            index=sequence.index,
            token_ids=() if token is None else (token.token_id,),
            logprobs=() if token is None or token.logprobs is None else (token.logprobs,),
            finish_reason=reason,
            cached_tokens=cached,
            error=error,
        )

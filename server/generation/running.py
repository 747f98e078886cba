"""One admitted request while it runs: from the engine's batches of tokens to pieces of text.

Whichever way it ends, everything still running is aborted and the metrics hear of it exactly once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from scheduler.types import ChoiceOutput, FinishReason, Request, TokenLogprobs
from server.engine_client.protocol import (
    EngineClient,
    EngineDied,
    EngineState,
    EngineUnavailable,
    QueueFull,
)
from server.generation.job import Echo, GenerationJob
from server.generation.request_record import RequestRecord
from server.generation.time_limits import TimeLimits
from server.http.errors import SERVER_ERROR, ApiError, cut_off, engine_error, engine_unavailable, queue_full
from server.metrics.registry import ENDINGS
from server.text.choice_text import ChoiceText
from server.text.tokenizer import TokenTable

ENDING_ERRORS = frozenset({"timeout", "queue_timeout", "abort"})
"""What an error may say of how its request ended; else that is ``error``."""

Batch = tuple[ChoiceOutput, ...]
Arrival = tuple[int, Batch | Exception | None]
"""Prompt index, and what its stream brought: a batch, its failure, or None at its end."""


class ChoiceDelta(msgspec.Struct, frozen=True):
    """What one batch added to the visible part of one choice."""

    index: int
    """Over all prompts: prompt index * n + choice."""
    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of exactly the tokens whose text this is, if they were asked for."""
    text_offsets: tuple[int, ...] = ()
    """Where each of these tokens begins in the choice's text, in characters."""
    finish_reason: FinishReason | None = None
    """Set once, in the choice's last delta: stop or length."""
    token_ids: tuple[int, ...] = ()
    """Generated, whether or not their text is in this delta; only if they were asked for."""
    prompt: tuple[TokenLogprobs, ...] | None = None
    """Set in a choice's first delta if the prompt is part of the answer: the delta is about the prompt then.
    Of its tokens but the first, if they were asked for. In ``logprobs`` the first is there, but unknown."""


class WithdrawnError(ApiError):
    """Somebody who is not the client ended the request."""

    def __init__(self) -> None:
        message = "The engine withdrew the request."
        super().__init__(500, message, code="engine_error", kind=SERVER_ERROR, rejection="abort")


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request. Each prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Choice:
    """One choice while it is generated."""

    def __init__(self, index: int, text: ChoiceText, job: GenerationJob) -> None:
        self.index = index
        self.begun = not job.shows_prompt
        self.finish_reason: FinishReason | None = None
        self.completion_tokens = 0
        self.cached_tokens: int | None = None
        self._text = text
        self._include_stop = job.text.include_stop
        self._empty = job.empty
        self._return_token_ids = job.return_token_ids
        self._with_logprobs = job.logprobs is not None

    def begin(self, echo: Echo | None, prompt: tuple[TokenLogprobs, ...]) -> ChoiceDelta:
        """What comes of the prompt, before anything else."""
        self.begun = True
        if echo is None:
            return ChoiceDelta(self.index, prompt=prompt)
        first = (TokenLogprobs(echo.token_ids[0], 0.0, ()),)
        entries = first + prompt if self._with_logprobs else ()
        delta = self._text.echo(echo.token_ids, echo.hidden, entries)
        return ChoiceDelta(self.index, delta.text, delta.logprobs, delta.text_offsets, prompt=prompt)

    def feed(self, output: ChoiceOutput) -> ChoiceDelta:
        """Add an output of the engine; what comes after a stop string is dropped."""
        if self._empty:
            self.finish_reason = FinishReason.LENGTH
            return ChoiceDelta(self.index, finish_reason=FinishReason.LENGTH)
        before = self.completion_tokens
        reason = output.finish_reason
        # The token that ended the sequence is counted and is no text, like a stop string.
        ender = reason is FinishReason.STOP and not self._include_stop
        shown = len(output.token_ids) - ender
        delta = self._text.feed(output.token_ids[:shown], output.logprobs[:shown])
        text, logprobs, offsets, stopped = delta
        if stopped:
            self.completion_tokens = self._text.completion_tokens
            reason = FinishReason.STOP
        else:
            self.completion_tokens += len(output.token_ids)
            if reason is not None:
                rest = self._text.finish(output.logprobs[-1] if ender and output.logprobs else None)
                text += rest.text
                logprobs += rest.logprobs
                offsets += rest.text_offsets
        self.finish_reason = reason
        token_ids = output.token_ids[: self.completion_tokens - before] if self._return_token_ids else ()
        return ChoiceDelta(self.index, text, logprobs, offsets, reason, token_ids)


class Generation:
    """The choices of one HTTP request, in the order that the engine makes progress on them."""

    def __init__(
        self, engine: EngineClient, job: GenerationJob, tokens: TokenTable, record: RequestRecord
    ) -> None:
        self._engine = engine
        self._job = job
        self._record = record
        self._prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
        """By prompt: its first choice brings them, and all of them show them."""
        self._computed: set[int] = set()
        """Prompts of which a choice has had a token."""
        self._arrivals: asyncio.Queue[Arrival] = asyncio.Queue(maxsize=len(job.requests))
        self._cut: ApiError | None = None
        self.choices = [
            Choice(index, job.text.for_choice(tokens), job) for index in range(job.n * len(job.requests))
        ]

    @property
    def finished(self) -> bool:
        """Whether every choice has its finish reason."""
        return all(choice.finish_reason is not None for choice in self.choices)

    @property
    def reason(self) -> FinishReason:
        """Of the whole request: length if any choice was cut there."""
        reasons = {choice.finish_reason for choice in self.choices}
        return FinishReason.LENGTH if FinishReason.LENGTH in reasons else FinishReason.STOP

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        n = self._job.n
        by_prompt = [self.choices[start : start + n] for start in range(0, len(self.choices), n)]
        return Usage(
            prompt_tokens=self._job.prompt_tokens,
            completion_tokens=sum(choice.completion_tokens for choice in self.choices),
            cached_tokens=sum(map(_cached_tokens, by_prompt)),
        )

    @property
    def server_timing(self) -> dict[str, str]:
        """The header that tells a client where the time went, once it is all over."""
        stages = self._record.stages().items()
        timing = ", ".join(f"{stage};dur={1000 * seconds:.1f}" for stage, seconds in stages)
        return {"Server-Timing": timing} if timing else {}

    def cut(self, error: ApiError) -> None:
        """Withdraw what is unfinished; ``error`` is the answer."""
        if self._cut is None and not self.finished:
            self._cut = error
            for request in self._job.requests:
                self._engine.abort(request.request_id)

    async def next_deltas(self) -> list[ChoiceDelta]:
        """Wait for the engine's next batch, and take what else has come by then.

        Loses nothing when it is cancelled.

        Raises:
            ApiError: the engine died, or could not finish a choice.
        """
        arrivals = [await self._arrivals.get()]
        while not self._arrivals.empty():
            arrivals.append(self._arrivals.get_nowait())
        return [delta for prompt, brought in arrivals for delta in self._take(prompt, brought)]

    async def pump(self, prompt: int, stream: AsyncIterable[Batch]) -> None:
        """Bring one prompt's batches to the queue; the stream itself merges what a slow client leaves."""
        withdrawn, ending = False, None
        try:
            async for batch in stream:
                await self._arrivals.put((prompt, batch))
        except EngineDied as error:
            ending = error
        except asyncio.CancelledError:
            withdrawn = True
            raise
        finally:
            # Also after a fault in the stream itself: nobody may wait for what will not come.
            if not withdrawn:
                await self._arrivals.put((prompt, ending))

    def _take(self, prompt: int, brought: Batch | Exception | None) -> list[ChoiceDelta]:
        n = self._job.n
        if brought is None:
            if all(choice.finish_reason for choice in self.choices[prompt * n : (prompt + 1) * n]):
                return []
            raise self._cut or engine_error("The engine ended the request early.")
        if isinstance(brought, Exception):
            raise engine_error("The engine failed while it was serving this request.")
        deltas: list[ChoiceDelta] = []
        for output in brought:
            choice = self.choices[prompt * n + output.index]
            if output.scheduled_at is not None:
                self._record.scheduled(output.scheduled_at)
                choice.cached_tokens = output.cached_tokens
            if choice.finish_reason is None and (output.token_ids or output.finish_reason is not None):
                if not choice.begun:
                    deltas.append(self._begin(choice, prompt, output))
                deltas.append(self._feed(choice, prompt, output))
        return deltas

    def _begin(self, choice: Choice, prompt: int, output: ChoiceOutput) -> ChoiceDelta:
        if output.prompt_logprobs:
            self._prompt_logprobs[prompt] = output.prompt_logprobs
        echo = self._job.echoes[prompt] if self._job.echoes else None
        return choice.begin(echo, self._prompt_logprobs.get(prompt, ()))

    def _feed(self, choice: Choice, prompt: int, output: ChoiceOutput) -> ChoiceDelta:
        if output.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
            raise self._failure(output)
        if choice.cached_tokens is None:
            choice.cached_tokens = output.cached_tokens
        if output.token_ids and prompt not in self._computed:
            self._computed.add(prompt)
            tokens = len(self._job.requests[prompt].prompt_token_ids)
            self._record.prompt_computed(tokens, choice.cached_tokens)
        before = choice.completion_tokens
        delta = choice.feed(output)
        self._record.tokens_generated(choice.index, choice.completion_tokens - before, output.tier)
        if delta.finish_reason is not None:
            self._record.choice_finished(delta.finish_reason.value)
            if output.finish_reason is None:
                self._engine.abort(output.request_id, output.index)
        return delta

    def _failure(self, output: ChoiceOutput) -> ApiError:
        if self._cut is not None:
            return self._cut
        if output.finish_reason is FinishReason.ABORT and self._engine.state is EngineState.DRAINING:
            return cut_off(output.error, self._engine.retry_after_seconds)
        if output.finish_reason is FinishReason.ABORT:
            return WithdrawnError()
        return engine_error(output.error or "The engine withdrew the request.")


@asynccontextmanager
async def running(
    engine: EngineClient,
    job: GenerationJob,
    tokens: TokenTable,
    record: RequestRecord,
    limits: TimeLimits,
) -> AsyncIterator[Generation]:
    """Hand a job to the engine and see it through to its end. An empty one needs no engine.

    Leaving the context aborts what is unfinished: at once when the client has gone.

    Raises:
        ApiError: the engine takes no requests now, or the queue is full; nothing was admitted then.
    """
    try:
        requests = job.requests
        streams = _submit_all(engine, requests) if job.needs_engine else [_nothing(r) for r in requests]
    except ApiError as error:
        record.metrics.rejected(error.rejection).inc()
        raise
    generation = Generation(engine, job, tokens, record)
    pumps = [asyncio.create_task(generation.pump(*numbered)) for numbered in enumerate(streams)]
    record.admitted()
    ending = "abort"
    try:
        with limits.watching(generation, job, record):
            yield generation
    except ApiError as error:
        ending = error.rejection if error.rejection in ENDING_ERRORS else "error"
        raise
    finally:
        if generation.finished:
            ending = generation.reason.value
        _withdraw(engine, job, generation, pumps, record, ending)


async def _nothing(request: Request) -> AsyncIterator[Batch]:
    """What an engine would say if it were asked for no tokens."""
    yield tuple(
        ChoiceOutput(request_id=request.request_id, index=index, finish_reason=FinishReason.LENGTH)
        for index in range(request.n)
    )


def _withdraw(
    engine: EngineClient,
    job: GenerationJob,
    generation: Generation,
    pumps: Sequence[asyncio.Task[None]],
    record: RequestRecord,
    ending: str,
) -> None:
    for pump in pumps:
        pump.cancel()
    unfinished = [choice for choice in generation.choices if choice.finish_reason is None]
    for prompt in sorted({choice.index // job.n for choice in unfinished}):
        engine.abort(job.requests[prompt].request_id)
    for _ in unfinished:
        record.choice_finished(ending if ending in ENDINGS else "timeout")
    record.finished(ending)


def _submit_all(engine: EngineClient, requests: Sequence[Request]) -> list[AsyncIterable[Batch]]:
    """All prompts or none."""
    streams: list[AsyncIterable[Batch]] = []
    try:
        for request in requests:
            streams.append(engine.submit(request))
    except (EngineUnavailable, QueueFull) as error:
        for request in requests[: len(streams)]:
            engine.abort(request.request_id)
        raise queue_full(error) if isinstance(error, QueueFull) else engine_unavailable(error) from None
    return streams


def _cached_tokens(choices: Sequence[Choice]) -> int:
    """Of one prompt: of its choices only the first to run computes it, the others find it cached."""
    return min((choice.cached_tokens for choice in choices if choice.cached_tokens is not None), default=0)

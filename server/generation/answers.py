"""The response to a generation request: runs it and writes what it makes, streamed or whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.engine_client.protocol import EngineClient
from server.generation.answer import Answer
from server.generation.events import SSE_HEADERS, EventStream, send_events
from server.generation.formats import ChatFormat, CompletionFormat
from server.generation.job import GenerationJob
from server.generation.live import LiveGeneration
from server.generation.request_record import RequestRecord
from server.generation.running import ChoiceDelta, Generation, running
from server.generation.time_limits import TimeLimits
from server.http.body import ClientDisconnected
from server.http.errors import ApiError
from server.http.exchange import exchange_of
from server.http.writer import ClientStalled, ResponseWriter, drop_connection, until_disconnect
from server.services import Services


class GenerationResponse(Response):
    """Admits a job when it is called, so that a refusal still has its own status.

    Args:
        job: what to generate.
        services: what to generate it with.
        answer: how it is written.
    """

    def __init__(self, job: GenerationJob, services: Services, answer: Answer) -> None:
        super().__init__()
        self._job = job
        self._services = services
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the job; stop it at once when the client goes or does not read."""
        settings = self._services.settings
        writer = ResponseWriter(send, settings.write_timeout)
        respond = self._stream if self._job.stream else self._whole
        try:
            await until_disconnect(receive, respond(scope, writer))
        except ClientDisconnected:
            self._answer.abandoned()
            exchange_of(scope).notes["client"] = "gone"
        except ClientStalled:
            self._answer.abandoned()
            exchange_of(scope).notes["client"] = "stalled"
            await drop_connection(scope, receive)
        finally:
            writer.close()

    async def _stream(self, scope: Scope, writer: ResponseWriter) -> None:
        answer = self._answer
        try:
            async with self._running(scope) as generation:
                opening = answer.admitted()
                await writer.start({**SSE_HEADERS, **self._job.headers})
                if opening:
                    await writer.write(opening)
                await send_events(generation, answer, writer, self._services.settings.sse_keepalive)
        except ApiError as error:
            if not writer.started:
                raise
            await writer.write(answer.broken_off(error), last=True)

    async def _whole(self, scope: Scope, writer: ResponseWriter) -> None:
        answer, timing = await self._body(scope)
        body = msgspec.json.encode(answer)
        length = str(len(body))
        await writer.start(
            {
                "content-type": "application/json",
                "content-length": length,
                **timing,
                **self._job.headers,
            }
        )
        await writer.write(body, last=True)

    async def _body(self, scope: Scope) -> tuple[dict[str, Any], dict[str, str]]:
        """The body, and a header that tells where the time went."""
        deltas: list[list[ChoiceDelta]] = [[] for _ in range(self._job.n * len(self._job.requests))]
        admitted = False
        try:
            async with self._running(scope) as generation:
                self._answer.admitted()
                admitted = True
                while not generation.finished:
                    for delta in await generation.next_deltas():
                        deltas[delta.index].append(delta)
        except ApiError as error:
            body = self._answer.failed(error, deltas) if admitted else None
            if body is None:
                raise
            return body, {}
        return self._answer.whole(deltas, generation), generation.server_timing

    @asynccontextmanager
    async def _running(self, scope: Scope) -> AsyncIterator[Generation]:
        services = self._services
        record = RequestRecord(
            services.metrics,
            services.live,
            services.clock,
            exchange_of(scope),
            self._job.endpoint,
            self._job.stream,
            plan_mode=partial(_plan_mode, services.engine),
        )
        record.exchange.notes |= {"model": self._job.model, "response": self._job.response_id}
        limits = TimeLimits(services.engine, services.settings.queue_timeout)
        async with running(services.engine, self._job, services.tokenizer, record, limits) as generation:
            with services.generations.listed(LiveGeneration(self._job, record, generation)):
                yield generation


def _plan_mode(engine: EngineClient) -> str | None:
    stats = engine.stats
    return None if stats is None or stats.plan is None else stats.plan.mode


def chat_response(job: GenerationJob, services: Services) -> GenerationResponse:
    """The response to a chat request."""
    format = ChatFormat(job, services.tokenizer)
    return GenerationResponse(job, services, EventStream(format, include_usage=job.include_usage))


def completion_response(job: GenerationJob, services: Services) -> GenerationResponse:
    """The response to a completion request."""
    format = CompletionFormat(job, services.tokenizer)
    return GenerationResponse(job, services, EventStream(format, include_usage=job.include_usage))

"""The engine process as the server sees it: requests down, outputs up, and what happens when it dies.

All of it belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from scheduler.messages import (
    AbortRequest,
    AddRequest,
    EngineFacts,
    FlushCache,
    Heartbeat,
    IterationOutput,
    LoadFailed,
    Loading,
    SchedulerStats,
    Start,
)
from scheduler.types import FinishReason, Request, RequestId
from server.engine_client.admission import CompletionRate, QueueLimits, bounded_retry, waiting_requests
from server.engine_client.load_timer import LoadTimer
from server.engine_client.output_stream import QueuedOutputStream
from server.engine_client.process import ENGINE_MODULE, EngineProcess
from server.engine_client.protocol import EngineState, EngineUnavailable, QueueFull
from server.engine_client.pulse import EngineHealth, Pulse
from server.engine_client.restart_policy import RestartPolicy

logger = logging.getLogger(__name__)


class EngineFailed(Exception):
    """There is no engine and there will be none; the message is for the user."""


class SupervisedEngineClient:
    """Implements ``protocol.EngineClient`` over an engine process that it starts and restarts.

    Args:
        start: What the engine is to load.
        queue_limit: Requests that may wait beyond ``start.max_running`` sequences.
        queued_tokens: Prompt tokens that may wait with them; 0 is no limit.
        restart_limit: Restarts within ten minutes before giving up.
        stall_timeout: Seconds without progress, while there is work, after which the engine is stalled.
        module: Run as the engine.
        clock: Monotonic seconds, for Retry-After, back-off and the engine's health only.
        on_loading: Told of loading progress.
        on_iteration: Told of each iteration's figures.
    """

    def __init__(
        self,
        start: Start,
        *,
        queue_limit: int,
        queued_tokens: int = 0,
        restart_limit: int,
        stall_timeout: float = 20.0,
        module: str = ENGINE_MODULE,
        clock: Callable[[], float] = time.monotonic,
        on_loading: Callable[[Loading], None] = lambda _: None,
        on_iteration: Callable[[SchedulerStats], None] = lambda _: None,
    ) -> None:
        self._start = start
        self._queue_limits = QueueLimits(queue_limit, queued_tokens)
        self._module = module
        self._clock = clock
        self._on_loading = on_loading
        self._on_iteration = on_iteration
        self._policy = RestartPolicy(restart_limit)
        self._rate = CompletionRate()
        self._process: EngineProcess | None = None
        self._streams: dict[RequestId, QueuedOutputStream] = {}
        self._facts: EngineFacts | None = None
        self._state = EngineState.STARTING
        self._stats: SchedulerStats | None = None
        self._restarts = 0
        self._loading = LoadTimer()
        self._pulse = Pulse(stall_timeout)
        self._checked = asyncio.Event()
        self._ready = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def facts(self) -> EngineFacts | None:
        """None until the engine is ready, and while it is being restarted."""
        return self._facts

    @property
    def state(self) -> EngineState:
        """Whether requests are taken."""
        return self._state

    @property
    def stats(self) -> SchedulerStats | None:
        """The latest iteration's; None before the engine's first one."""
        return self._stats

    @property
    def health(self) -> EngineHealth:
        """Whether it gets on with its work."""
        return self._pulse.health(self._clock(), len(self._streams))

    @property
    def restarts(self) -> int:
        """Times a dead engine was started again."""
        return self._restarts

    @property
    def process_id(self) -> int | None:
        """Of the live engine process."""
        return self._process.pid if self._process else None

    @property
    def retry_after_seconds(self) -> float:
        """When it is worth asking again: whole seconds from 1 to 60."""
        if self._state is EngineState.DRAINING:
            return bounded_retry(self._loading.whole())  # by the server's successor
        if self._state is EngineState.READY:
            return self._rate.seconds_for(len(self._streams), self._clock())
        return bounded_retry(self._loading.left(self._clock()))

    # -- requests

    def submit(self, request: Request) -> QueuedOutputStream:
        """Hand a request over.

        Raises:
            EngineUnavailable: the engine isn't ready, or the server is draining.
            QueueFull: as many requests wait as may wait.
            ValueError: a live request has the same id.
        """
        if self._state is not EngineState.READY or self._process is None:
            raise EngineUnavailable(self._state, self.retry_after_seconds)
        if request.request_id in self._streams:
            raise ValueError(f"request id {request.request_id} is in use")
        self._refuse_if_queue_full(len(request.prompt_token_ids))
        self._process.send(AddRequest(request))
        if not self._streams:
            self._pulse.work_began(self._clock())
        stream = QueuedOutputStream(request)
        self._streams[request.request_id] = stream
        self._idle.clear()
        self._rate.started(self._clock())
        return stream

    def check_room(self) -> None:
        """Whether a short request would be taken.

        Raises:
            QueueFull: it would not.
        """
        self._refuse_if_queue_full(1)

    def abort(self, request_id: RequestId, index: int | None = None) -> None:
        """Withdraw a request, or one choice of it; its stream ends without waiting for the engine."""
        stream = self._streams.get(request_id)
        if stream is not None and stream.finish(FinishReason.ABORT, index):
            self._withdraw(stream, index)

    def flush_cache(self) -> None:
        """Have the prefixes forgotten that no live request uses."""
        if self._process is not None:
            self._process.send(FlushCache())

    def drain(self) -> None:
        """Take no more requests; those that run go on. A dead engine isn't restarted any more."""
        self._state = EngineState.DRAINING

    async def wait_until_idle(self, timeout: float) -> bool:
        """Whether every request ended within ``timeout`` seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout)
        return not self._streams

    def end_all(self, error: str) -> int:
        """Withdraw every live request; ``error`` tells its client why.

        Returns:
            How many there were.
        """
        streams = list(self._streams.values())
        for stream in streams:
            stream.finish(FinishReason.ABORT, error=error)
            self._withdraw(stream, None)
        return len(streams)

    # -- the process

    async def wait_until_checked(self) -> None:
        """Until the first engine found the checkpoint good and began to load it."""
        await self._checked.wait()

    async def wait_until_ready(self) -> None:
        """Until the first engine serves requests."""
        await self._ready.wait()

    async def supervise(self) -> None:
        """Keep an engine running until cancelled, or draining and dead.

        Raises:
            EngineFailed: the model can't be loaded, or engines die too often.
        """
        while not self._is_draining():
            ending = await self._run_engine()
            if not self._is_draining():
                await self._prepare_restart(ending)

    def _is_draining(self) -> bool:
        return self._state is EngineState.DRAINING

    async def _run_engine(self) -> str:
        """One life of an engine process.

        Returns:
            How it ended.
        """
        self._loading.start(self._clock())
        try:
            process = await EngineProcess.spawn(self._module)
        except OSError as error:
            return f"the engine process can't be started: {error.strerror}"
        refusal = None
        try:
            process.send(self._start)
            async for message in process.messages():
                match message:
                    case Heartbeat(cpu_seconds):
                        self._pulse.beat(self._clock(), cpu_seconds)
                    case IterationOutput():
                        self._receive(message)
                    case EngineFacts():
                        self._become_ready(process, message)
                    case Loading():
                        self._note_progress(message)
                    case LoadFailed():
                        refusal = message.message
        finally:
            self._become_dead()
            ending = await process.stop()
        return refusal or f"the engine process {ending}"

    async def _prepare_restart(self, ending: str) -> None:
        delay = self._policy.next_delay(self._clock()) if self._ready.is_set() else None
        if delay is None:
            self._state = EngineState.FAILED
            raise EngineFailed(f"{ending}; it died too often" if self._ready.is_set() else ending)
        logger.error("%s; restarting it in %.1f s", ending, delay)
        self._restarts += 1
        self._loading.start(self._clock() + delay)
        await asyncio.sleep(delay)

    # -- messages

    def _note_progress(self, loading: Loading) -> None:
        self._loading.progress(loading.bytes_done / max(1, loading.bytes_total))
        self._checked.set()
        self._on_loading(loading)

    def _become_ready(self, process: EngineProcess, facts: EngineFacts) -> None:
        self._process, self._facts = process, facts
        seconds = self._loading.finish(self._clock())
        if self._state is not EngineState.DRAINING:
            self._state = EngineState.READY
        self._checked.set()
        self._ready.set()
        logger.info("the engine, process %d, took %.1f s to load", process.pid, seconds)

    def _become_dead(self) -> None:
        self._process = self._facts = self._stats = None
        self._pulse.reset()
        if self._state is EngineState.READY:
            self._state = EngineState.RESTARTING
        if self._streams:
            logger.error("the engine is gone, %d requests are lost", len(self._streams))
        for stream in self._streams.values():
            stream.fail()
            self._rate.ended(self._clock())
        self._streams.clear()
        self._idle.set()

    def _receive(self, iteration: IterationOutput) -> None:
        self._stats = iteration.stats
        self._pulse.iteration(self._clock())
        for output in iteration.outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                stream.feed(output)
                if not stream.unfinished_choices:
                    self._forget(stream)
        self._on_iteration(iteration.stats)

    # -- accounting

    def _withdraw(self, stream: QueuedOutputStream, index: int | None) -> None:
        if self._process is not None:
            self._process.send(AbortRequest(stream.request_id, index))
        if not stream.unfinished_choices:
            self._forget(stream)

    def _forget(self, stream: QueuedOutputStream) -> None:
        del self._streams[stream.request_id]
        self._rate.ended(self._clock())
        if not self._streams:
            self._idle.set()

    def _refuse_if_queue_full(self, prompt_tokens: int) -> None:
        streams = list(self._streams.values())
        unfinished = [stream.unfinished_choices for stream in streams]
        waiting = waiting_requests([*unfinished, 1], self._start.max_running)
        prompts = [stream.prompt_tokens for stream in streams] + [prompt_tokens]
        if not self._queue_limits.allow(prompts[len(prompts) - waiting :]):
            raise QueueFull(self._rate.seconds_for(waiting, self._clock()))

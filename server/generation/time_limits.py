"""How long a request may wait, and how long it may take in all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from server.engine_client.protocol import EngineClient
from server.generation.job import GenerationJob
from server.generation.request_record import RequestRecord
from server.http.errors import ApiError, deadline_passed, queue_timeout


class Cuttable(Protocol):
    """What can be ended before it is finished."""

    def cut(self, error: ApiError) -> None:
        """Withdraw what is unfinished."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Times count from a request's arrival, so what was spent on checking it is a part of them."""

    engine: EngineClient
    queue_timeout: float
    """Seconds until something of it has to be computed; 0 is no limit."""

    @contextmanager
    def watching(self, generation: Cuttable, job: GenerationJob, record: RequestRecord) -> Iterator[None]:
        """Cut a generation off at its limits while the context lasts."""
        loop, timers = asyncio.get_running_loop(), []
        if self.queue_timeout:
            left = self.queue_timeout - record.elapsed()
            timers.append(loop.call_later(left, self._end_waiting, generation, record))
        if job.deadline is not None:
            left, error = job.deadline - record.elapsed(), deadline_passed(job.deadline)
            timers.append(loop.call_later(left, generation.cut, error))
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()

    def _end_waiting(self, generation: Cuttable, record: RequestRecord) -> None:
        if record.scheduled_at is None and record.first_token_at is None:
            generation.cut(queue_timeout(self.queue_timeout, self.engine.retry_after_seconds))

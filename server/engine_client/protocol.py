"""What the HTTP surface needs of the engine client, and the three ways it can say no."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator
from typing import Protocol

from scheduler.messages import EngineFacts, SchedulerStats
from scheduler.types import ChoiceOutput, Request, RequestId
from server.engine_client.pulse import EngineHealth


class EngineState(enum.StrEnum):
    """Where the engine process is in its life, seen from the server."""

    STARTING = "starting"
    """Loading the model for the first time."""
    READY = "ready"
    RESTARTING = "restarting"
    """It died and is being loaded again."""
    FAILED = "failed"
    """It died too often; the daemon is about to exit."""
    DRAINING = "draining"
    """Running requests may finish, new ones are refused."""


class EngineUnavailable(Exception):
    """The engine takes no requests in its present state."""

    def __init__(self, state: EngineState, retry_after_seconds: float) -> None:
        super().__init__(f"the engine is {state.value}")
        self.state = state
        self.retry_after_seconds = retry_after_seconds


class QueueFull(Exception):
    """As many requests wait as may wait."""

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__("the request queue is full")
        self.retry_after_seconds = retry_after_seconds


class EngineDied(Exception):
    """The engine process ended while it was serving this request."""


class OutputStream(Protocol):
    """What the engine makes of one request, batch by batch.

    Ends after the last output of all ``n`` choices, aborted ones included. Raises ``EngineDied`` when
    the engine process dies first.
    """

    def __aiter__(self) -> AsyncIterator[tuple[ChoiceOutput, ...]]: ...

    async def __anext__(self) -> tuple[ChoiceOutput, ...]: ...


class EngineClient(Protocol):
    """The engine process as the HTTP surface sees it. All methods belong to the event loop's thread."""

    @property
    def facts(self) -> EngineFacts | None:
        """None until the engine is ready, and while it is being restarted."""

    @property
    def state(self) -> EngineState:
        """Whether requests are taken now."""

    @property
    def stats(self) -> SchedulerStats | None:
        """The latest iteration's; None before the first one."""

    @property
    def health(self) -> EngineHealth:
        """Whether it gets on with its work."""

    @property
    def retry_after_seconds(self) -> float:
        """When it is worth asking again: whole seconds from 1 to 60."""

    def check_room(self) -> None:
        """Raises ``QueueFull`` if a short request would be refused now."""

    def submit(self, request: Request) -> OutputStream:
        """Hand a request over. Raises ``EngineUnavailable`` or ``QueueFull``."""

    def flush_cache(self) -> None:
        """Have the prefixes forgotten that no live request uses."""

    def abort(self, request_id: RequestId, index: int | None = None) -> None:
        """Withdraw a request, or one choice of it. Unknown ids are ignored."""

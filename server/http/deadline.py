"""Bounding many short waits of one task without a timer for each."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Deadline:
    """``with deadline.at(when): await ...``, like ``asyncio.timeout_at``, but cheap enough for every token.

    A timer set for an earlier wait is left to ring; only then is it set anew, for the wait under way.
    Belongs to one task; waits are not nested.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._when: float | None = None
        """Of the wait that goes on."""
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._expired = False

    def at(self, when: float) -> Self:
        """Loop time at which the wait that follows ends with TimeoutError."""
        self._when = when
        if self._timer is None or when < self._timer.when():
            self.close()
            self._timer = self._loop.call_at(when, self._ring)
        return self

    def close(self) -> None:
        """No wait will follow."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __enter__(self) -> None:
        self._task = asyncio.current_task()
        if self._task is not None:
            self._cancelling = self._task.cancelling()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._when = None
        task, self._task = self._task, None
        if self._expired and task is not None:
            self._expired = False
            if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
                raise TimeoutError from error

    def _ring(self) -> None:
        self._timer = None
        if self._when is None or self._task is None:
            return
        if self._loop.time() < self._when:
            self._timer = self._loop.call_at(self._when, self._ring)
        else:
            self._expired = True
            self._task.cancel()

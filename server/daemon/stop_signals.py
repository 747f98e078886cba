"""SIGTERM and SIGINT: the first asks for an orderly end, the second for an immediate one."""

from __future__ import annotations

import asyncio
import signal
from types import TracebackType
from typing import Self

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Both signals, counted, while it is entered in the main thread's running loop."""

    def __init__(self) -> None:
        self._first = asyncio.Event()
        self._second = asyncio.Event()
        self._last = signal.SIGTERM

    def __enter__(self) -> Self:
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._received, number)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    async def first(self) -> None:
        """Until a signal came."""
        await self._first.wait()

    async def second(self) -> int:
        """Until another one came.

        Returns:
            The exit code for it, as shells count: 128 and the signal's number.
        """
        await self._second.wait()
        return 128 + self._last

    def _received(self, number: signal.Signals) -> None:
        self._last = number
        if self._first.is_set():
            self._second.set()
        self._first.set()

"""Work on texts and bodies: what takes long runs beside the event loop, the rest one piece a turn of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Worker:
    """One thread, and the event loop's own.

    Encoding releases the GIL but needs a core, and the engine wants them: there is one thread only.
    """

    def __init__(self, executor: Executor | None = None) -> None:
        """``executor`` stands in for the thread."""
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="text")
        self._turn = asyncio.Lock()

    async def run(self, size: int, function: Callable[[], T], *, inline: int) -> T:
        """Run ``function``, in the thread if its input's ``size`` says that it takes long.

        However many requests come at once, the loop runs one function, then serves everybody else: half a
        millisecond for each of hundreds of requests in one turn would be felt by every stream.

        Args:
            size: of the input, in bytes or characters.
            function: what to run.
            inline: the greatest size that is run in place.
        """
        if size > inline:
            return await asyncio.get_running_loop().run_in_executor(self._executor, function)
        async with self._turn:
            await asyncio.sleep(0)
            return function()

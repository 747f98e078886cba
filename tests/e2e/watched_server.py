"""``tandem serve`` with a watchdog on its event loop: run as ``python -m tests.e2e.watched_server``.

A thread asks the loop for a sign of life every few milliseconds and, at the end, prints the longest
time the loop let it wait and how much processor time the loop's thread burned meanwhile. The
second figure is the loop's own doing; the first also counts a busy machine.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import server.cli

INTERVAL = 0.005


class Watchdog(threading.Thread):
    """Watches the loop it is started from."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._loop = asyncio.get_running_loop()
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self.longest_wait = 0.0
        self.longest_work = 0.0

    def run(self) -> None:
        answered = threading.Event()
        while True:
            answered.clear()
            began, burned = time.perf_counter(), time.clock_gettime(self._clock)
            try:
                self._loop.call_soon_threadsafe(answered.set)
            except RuntimeError:
                return
            answered.wait(60)
            self.longest_work = max(self.longest_work, time.clock_gettime(self._clock) - burned)
            self.longest_wait = max(self.longest_wait, time.perf_counter() - began)
            time.sleep(INTERVAL)


def main() -> int:
    watchdogs: list[Watchdog] = []
    original = asyncio.Runner.run

    def run(self, coroutine, *, context=None):
        async def watched():
            watchdogs.append(Watchdog())
            watchdogs[-1].start()
            return await coroutine

        return original(self, watched(), context=context)

    asyncio.Runner.run = run
    code = server.cli.main(["serve", *sys.argv[1:]])
    for watchdog in watchdogs:
        print(f"event loop: waited {watchdog.longest_wait:.4f} s, worked {watchdog.longest_work:.4f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())

"""A sign of life a second, from a thread beside the iteration loop: the process runs, and computes.

It says little of the loop itself, which may hang while this thread does not; the server holds it against the
iterations that come or don't (server/engine_client/pulse.py).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from scheduler.messages import Heartbeat

INTERVAL = 1.0
"""Seconds."""


def start_heartbeat(send: Callable[[Heartbeat], None]) -> None:
    """Begin, until the process ends."""

    def beat() -> None:
        while True:
            time.sleep(INTERVAL)
            send(Heartbeat(time.process_time()))

    threading.Thread(target=beat, name="engine-heartbeat", daemon=True).start()

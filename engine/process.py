"""The engine process: ``python -m engine.process FD``, FD being its end of a socket pair.

Threads: the main thread runs the iteration loop and is the sole owner of scheduler and model; one
thread reads the socket, one writes it (engine/connection.py); torch has its own pool.
"""

from __future__ import annotations

import gc
import logging
import signal
import socket
import sys

from configs.log_format import formatter
from engine.clock import MonotonicClock
from engine.connection import Connection
from engine.heartbeat import start_heartbeat
from engine.loading import load_engine
from engine.model_error import ModelError
from scheduler.iteration_loop import IterationLoop
from scheduler.messages import LoadFailed
from scheduler.scheduler import Scheduler


def main(arguments: list[str]) -> int:
    """Serve one server until it goes. Returns the exit code: 1 if the model can't be served."""
    # Only the server's end of the socket decides when the engine goes: whoever signals the whole
    # process group (a terminal, a service manager) would cut off what the server is draining.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(socket.socket(fileno=int(arguments[0])))
    try:
        start = connection.receive_start()
        handler = logging.StreamHandler()
        handler.setFormatter(formatter(start.log_format, "engine"))
        logging.basicConfig(level=start.log_level.upper(), handlers=[handler])
        loaded = load_engine(start, connection.send)
    except EOFError:
        return 0
    except ModelError as error:
        connection.send(LoadFailed(str(error)))
        connection.close()
        return 1
    # What was loaded lives as long as the process: the collector need not walk it again.
    gc.collect()
    gc.freeze()
    connection.send(loaded.facts)
    start_heartbeat(connection.send)
    scheduler = Scheduler(loaded.limits, loaded.planner, loaded.costs)
    IterationLoop(scheduler, loaded.executor, MonotonicClock(), connection, connection.send).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A ``tandem`` command whose ``serve`` is the scripted server and whose ``bench`` is the real one."""

from __future__ import annotations

import os
import sys
import time

import uvicorn

from server.client.bench.main import run
from tests.unit.fake_openai_server import Script


def main() -> int:
    command, *arguments = sys.argv[1:]
    if command == "bench":
        return run(arguments)
    model, flags = arguments[0], dict(zip(arguments[1::2], arguments[2::2], strict=True))
    print("serving", model, flags, flush=True)
    if model == "broken":
        print("the model is broken")
        return 1
    time.sleep(0.3)  # a client that does not wait for /ready finds nobody listening
    status = {"status": (lambda number: 500 if number > 20 else 200)} if model == "failing" else {}
    uvicorn.run(Script(**status), port=int(flags["--port"]), log_level="error", lifespan="off")
    return 0


if __name__ == "__main__":
    sys.exit(main() or os.EX_OK)

"""What the two processes of ``tandem serve`` cost beside the model: CPU time of each, busy and idle.

python -m benchmarks.overhead_server --streams 64

The real server and an engine without a model (benchmarks/imaginary_engine.py); clients read bare sockets.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from benchmarks.imaginary_engine import SECONDS
from benchmarks.machine import LoadMeter, description

_PATIENCE = 60.0
_SERVE = (
    "import sys; from configs.settings import Settings; from server.lifecycle import serve;"
    "settings = Settings(model=sys.argv[1], port=int(sys.argv[2]), max_running=256, log_level='warning');"
    "sys.exit(serve(settings, 'benchmarks.imaginary_engine'))"
)


class Daemon:
    """A server with its engine; its processes' CPU seconds."""

    def __init__(self, model: str, seconds: float) -> None:
        self.port = _free_port()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, model, str(self.port)], env={**os.environ, SECONDS: str(seconds)}
        )

    def __enter__(self) -> Self:
        deadline = time.monotonic() + _PATIENCE
        while not self._ready():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise SystemExit("the server does not get ready")
            time.sleep(0.1)
        (engine,) = psutil.Process(self._process.pid).children()
        self._pids = {"server": self._process.pid, "engine": engine.pid}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(_PATIENCE)

    def cpu_seconds(self) -> dict[str, float]:
        """Of each process, all its threads together."""
        return {name: _cpu_seconds(pid) for name, pid in self._pids.items()}

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready"):
                return True
        except urllib.error.URLError:
            return False


class Streams:
    """Completions that are read as they come."""

    def __init__(self, model: str, port: int, count: int, tokens: int, endpoint: str) -> None:
        body: dict[str, object] = {"model": model, "stream": True, "max_tokens": tokens}
        body |= {"ignore_eos": True, "temperature": 0}
        if endpoint == "chat":
            body["messages"] = [{"role": "user", "content": "Hello"}]
        else:
            body["prompt"] = "Once upon a time"
        content = json.dumps(body)
        path = "/v1/chat/completions" if endpoint == "chat" else "/v1/completions"
        request = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n{content}"
        )
        self._selector = selectors.DefaultSelector()
        self._sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        for connection in self._sockets:
            connection.sendall(request.encode())
            self._selector.register(connection, selectors.EVENT_READ)
        self.events = 0

    def read_until(self, events: int) -> None:
        """Until so many events have come in all, or every stream has ended."""
        ended = 0
        while self.events < events and ended < len(self._sockets):
            for key, _ in self._selector.select(_PATIENCE):
                data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                if data.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")):
                    raise SystemExit(data.decode())
                self.events += data.count(b"data: ")
                ended += b"[DONE]" in data

    def close(self) -> None:
        """Hang up."""
        for connection in self._sockets:
            connection.close()


def _busy(
    daemon: Daemon, model: str, streams: int, tokens: int, endpoint: str
) -> tuple[int, dict[str, float]]:
    """Events in the middle part of ``streams`` answers, and the CPU seconds they cost."""
    reading = Streams(model, daemon.port, streams, tokens, endpoint)
    reading.read_until(streams * tokens // 5)
    before, first = daemon.cpu_seconds(), reading.events
    reading.read_until(streams * tokens * 9 // 10)
    after, last = daemon.cpu_seconds(), reading.events
    reading.close()
    return last - first, {name: after[name] - before[name] for name in after}


def _cpu_seconds(pid: int) -> float:
    """To the nanosecond, where the kernel keeps such accounts."""
    tasks = Path(f"/proc/{pid}/task")
    if not tasks.exists():
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead_server", allow_abbrev=False)
    parser.add_argument(
        "--model", default="smollm2-135m-instruct", help="whose tokenizer; default: %(default)s"
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64], help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=200, help="of each stream; default: %(default)s")
    parser.add_argument("--endpoint", choices=("chat", "completions"), default="chat")
    parser.add_argument(
        "--seconds", type=float, default=0.005, help="an iteration's model takes; default: %(default)s"
    )
    parser.add_argument("--idle", type=float, default=0.0, help="seconds to watch both idle; default: none")
    options = parser.parse_args()
    print(f"Machine: {description('torch', 'numpy', 'uvicorn')}")
    print(f"Repeat: python -m benchmarks.overhead_server {' '.join(sys.argv[1:])}\n")
    meter = LoadMeter()
    with Daemon(options.model, options.seconds) as daemon:
        for streams in options.streams:
            events, seconds = _busy(daemon, options.model, streams, options.tokens, options.endpoint)
            each = {name: value / events * 1e6 for name, value in seconds.items()}
            print(
                f"{streams:4d} streams: {each['server']:6.1f} us of the server's CPU an event, "
                f"{each['engine'] * streams / 1e3:6.2f} ms of the engine's an iteration"
            )
        if options.idle:
            time.sleep(2.0)
            before = daemon.cpu_seconds()
            time.sleep(options.idle)
            for name, value in daemon.cpu_seconds().items():
                print(f"idle {name}: {(value - before[name]) / options.idle:.2%} of a core")
    print(f"\nOthers' share of the CPU: {meter.read().others:.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The application behind the real HTTP server, on a free port and in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import uvloop

from server.app import create_app
from server.daemon.http_server import HttpServer
from server.daemon.listener import listen
from tests.server.fakes import FakeEngine, make_services

PATIENCE = 10.0


@dataclass
class LiveServer:
    engine: FakeEngine
    port: int
    http: HttpServer

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self, receive_buffer: int | None = None) -> socket.socket:
        """A plain connection; closing it is leaving without a word."""
        connection = socket.socket()
        connection.settimeout(PATIENCE)
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.connect(("127.0.0.1", self.port))
        return connection

    def metric(self, name: str) -> float:
        """One sample of /metrics, named as it is written there, without the prefix."""
        lines = httpx.get(self.url + "/metrics").text.splitlines()
        (value,) = [line.rpartition(" ")[2] for line in lines if line.startswith(f"tandem_{name} ")]
        return float(value)


def post(path: str, body: dict, version: str = "1.1") -> bytes:
    """A request as it goes over the wire."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def eventually(condition: Callable[[], bool]) -> None:
    """Waits for what another thread brings about."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


@contextmanager
def live_server(engine: FakeEngine, **settings: object) -> Iterator[LiveServer]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        services = make_services(engine, **settings)
        listen(listener, services.settings.write_timeout)
        listener.setblocking(False)
        server = HttpServer(create_app(services), listener)

        def run() -> None:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(server.run_until_closed())

        thread = threading.Thread(target=run)
        thread.start()
        try:
            eventually(lambda: server.started)
            yield LiveServer(engine, listener.getsockname()[1], server)
        finally:
            server.close()
            thread.join(PATIENCE)
            assert not thread.is_alive()

"""uvicorn, set up: its HTTP protocol, its time limits, and without its own signals and log lines."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Generator

import uvicorn
from starlette.types import ASGIApp

from server.http.uvicorn_protocol import HttpProtocol

KEEP_ALIVE = 75
"""Seconds an idle connection is kept."""
CLOSING_TIME = 5
"""Seconds that responses get to reach their clients once the server ends."""


class HttpServer(uvicorn.Server):
    """Serves an application on one bound socket."""

    def __init__(self, app: ASGIApp, sock: socket.socket, context: ssl.SSLContext | None = None) -> None:
        self._sock = sock
        super().__init__(
            uvicorn.Config(
                app,
                http=HttpProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                ssl_context_factory=None if context is None else lambda *_: context,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=CLOSING_TIME,
            )
        )

    async def run_until_closed(self) -> None:
        """Accept connections until ``close`` was called and responses have ended."""
        await self.serve(sockets=[self._sock])

    def close(self) -> None:
        """Stop accepting connections and end when responses have, or after CLOSING_TIME."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Signals are the lifecycle's: uvicorn would close the port at the first one."""
        yield

"""Writing to one client, and noticing when that client is gone or does not read."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

from server.http.body import ClientDisconnected
from server.http.deadline import Deadline
from server.http.uvicorn_protocol import DROP_CONNECTION


class ClientStalled(Exception):
    """The client has not read anything for the write timeout."""


class ResponseWriter:
    """Writes one response; the HTTP server's buffers bound what a slow client costs.

    Args:
        send: ASGI's.
        write_timeout: seconds that one write may wait for the client to read.
    """

    def __init__(self, send: Send, write_timeout: float) -> None:
        self._send = send
        self._write_timeout = write_timeout
        self._loop = asyncio.get_running_loop()
        self._deadline = Deadline()
        self.started = False
        self.written_at = 0.0
        """Loop time of the last write."""

    async def start(self, headers: Mapping[str, str]) -> None:
        """Send the status line and headers: from here on errors are events."""
        self.started = True
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self._patiently({"type": "http.response.start", "status": 200, "headers": raw})

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Send whole frames at once.

        Raises:
            ClientStalled: the client did not read in time.
        """
        await self._patiently({"type": "http.response.body", "body": data, "more_body": not last})

    def close(self) -> None:
        """Nothing more will be written."""
        self._deadline.close()

    async def _patiently(self, message: dict[str, Any]) -> None:
        try:
            with self._deadline.at(self._loop.time() + self._write_timeout):
                await self._send(message)
        except TimeoutError:
            raise ClientStalled from None
        self.written_at = self._loop.time()


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work``, but cancel it as soon as the client leaves.

    Raises:
        ClientDisconnected: it was cancelled.
    """
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)
    if task.cancelled():
        raise ClientDisconnected
    task.result()


async def drop_connection(scope: Scope, receive: Receive) -> None:
    """Close a stalled client's connection without waiting for it, where the HTTP server can."""
    extension = scope.get("extensions", {}).get(DROP_CONNECTION)
    if extension is not None:
        extension["now"]()
        await _disconnected(receive)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

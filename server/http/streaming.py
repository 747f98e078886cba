"""Server-sent events to one client, and noticing when that client is gone or does not read."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from server.generation.formats import Format, usage_json
from server.generation.running import ChoiceDelta, Generation
from server.http.body import ClientDisconnected
from server.http.errors import ApiError
from server.http.uvicorn_protocol import DROP_CONNECTION

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
SSE_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
    }
)


class ClientStalled(Exception):
    """The client has not read anything for the write timeout."""


class EventWriter:
    """Writes one response; the HTTP server's buffers bound what a slow client costs.

    Args:
        send: ASGI's.
        write_timeout: seconds that one write may wait for the client to read.
    """

    def __init__(self, send: Send, write_timeout: float) -> None:
        self._send = send
        self._write_timeout = write_timeout
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

    async def _patiently(self, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(self._write_timeout):
                await self._send(message)
        except TimeoutError:
            raise ClientStalled from None
        self.written_at = asyncio.get_running_loop().time()


class EventStream:
    """The frames of one answer.

    Args:
        format: the endpoint's.
        include_usage: whether a last chunk carries the usage.
    """

    def __init__(self, format: Format, *, include_usage: bool) -> None:
        self._format = format
        self._include_usage = include_usage
        # Every chunk differs in its one choice only; the rest is encoded once.
        envelope = msgspec.json.encode(format.envelope(chunk=True))
        self._head = b"data: " + envelope[:-1] + b',"choices":['
        self._end_of_chunk = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def frames(self, deltas: list[ChoiceDelta]) -> bytes:
        """One frame for each chunk; none for deltas with nothing to see."""
        head, encode, end = self._head, msgspec.json.encode, self._end_of_chunk
        return b"".join(
            [head + encode(entry) + end for delta in deltas for entry in self._format.chunk_choices(delta)]
        )

    def ending(self, generation: Generation) -> bytes:
        """What follows the last choice's end."""
        if not self._include_usage:
            return DONE
        usage = msgspec.json.encode(usage_json(generation.usage))
        return self._head + b'],"usage":' + usage + b"}\n\n" + DONE


def error_frames(error: ApiError) -> bytes:
    """The end of a stream that failed after it had begun."""
    return b"data: " + error.body() + b"\n\n" + DONE


async def send_events(
    generation: Generation, events: EventStream, writer: EventWriter, keepalive: float
) -> None:
    """Write a generation's events as they come, and a comment after ``keepalive`` seconds of silence.

    Raises:
        ApiError: the generation failed.
        ClientStalled: the client did not read in time.
    """
    while not generation.finished:
        try:
            async with asyncio.timeout_at(writer.written_at + keepalive):
                deltas = await generation.next_deltas()
        except TimeoutError:
            await writer.write(PING)
            continue
        data = events.frames(deltas)
        if generation.finished:
            await writer.write(data + events.ending(generation), last=True)
        elif data:
            await writer.write(data)


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

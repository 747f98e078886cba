"""uvicorn's HTTP/1 protocol with eight things put right.

* A response of unknown length to an HTTP/1.0 client is ended by closing the connection. uvicorn sends
  chunks, which HTTP/1.0 does not have (RFC 9112, section 6.3).
* A request that is no HTTP gets OpenAI's error object, not plain text.
* The application can drop a connection whose client does not read: closing it would wait for the client.
* What is written to a connection that was dropped a moment ago is lost, not a fault.
* A client that sent its next request already (pipelining) and leaves is noticed: uvicorn stops reading then,
  and tells only the newest request that the connection is lost.
* A request's headers are bounded in size, and in time from their first byte.
* A connection on which nothing comes is idle from its beginning, not from its first response on.
* Neither does an idle connection outlive its time because the end of a response was never read.

It overrides methods that are not uvicorn's public interface, so pyproject.toml bounds uvicorn's version.
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport

from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from server.http.errors import bad_request

DROP_CONNECTION = "tandem.drop_connection"
"""ASGI extension: ``scope["extensions"][DROP_CONNECTION]["now"]()`` closes the connection at once."""
MAX_HEADER_BYTES = 64 * 1024
HEADER_SECONDS = 10.0
"""From a request's first byte to the end of its headers."""
MAX_PIPELINED = 8
"""Requests that may wait on one connection; a client that sends more is dropped."""


class HttpProtocol(HttpToolsProtocol):
    """To be given to ``uvicorn.Config`` as ``http``."""

    _serving: RequestResponseCycle | None = None
    _header_bytes = 0
    """Received of headers that are not complete."""
    _header_timer: TimerHandle | None = None
    """Runs while headers are not complete."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Idle until the first request comes."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def data_received(self, data: bytes) -> None:
        """Drop a client whose headers are too long; the time limit runs in a timer."""
        super().data_received(data)
        if self._header_timer is None:
            return
        self._header_bytes += len(data)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._refuse("The request's headers are too large.", "431 Request Header Fields Too Large")

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._header_bytes = 0
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def on_headers_complete(self) -> None:
        """Go on reading while requests wait: only reading shows that the client has left."""
        self._stop_header_timer()
        super().on_headers_complete()
        if len(self.pipeline) > MAX_PIPELINED:
            self.transport.abort()
        elif self.pipeline:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        """A waiting request may not have more body than is buffered unread."""
        super().on_body(body)
        if self.pipeline and self.flow.read_paused:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that is served, and drop those that wait."""
        self._stop_header_timer()
        self.pipeline.clear()
        serving = self._serving
        if serving is not None and not serving.response_complete:
            serving.disconnected = True
            serving.message_event.set()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what can't be parsed."""
        self._refuse("The request is not valid HTTP.", "400 Bad Request")

    def _refuse(self, message: str, status: str) -> None:
        """Answer what never becomes a request, and close."""
        self._stop_header_timer()
        body = bad_request(message, "invalid_http").body()
        head = (
            f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def on_response_complete(self) -> None:
        """Bound how long a closing connection waits for its client to read."""
        super().on_response_complete()
        if self.transport.is_closing() and self.transport.get_write_buffer_size():
            self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        """Closing waits until what was written is read; a client that has not by now never will."""
        if not self.transport.is_closing() and self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().timeout_keep_alive_handler()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._serving = cycle
        cycle.scope["extensions"] = {DROP_CONNECTION: {"now": cycle.transport.abort}}
        if cycle.scope["http_version"] == "1.0":
            app = _close_delimited(app, cycle)
        super()._start_asgi_task(cycle, _while_open(app, cycle))


def _while_open(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """An app that may go on sending until it learns that the connection is gone."""

    async def adapted(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        async def send_if_open(event: ASGISendEvent) -> None:
            if not cycle.transport.is_closing():
                await send(event)

        await app(scope, receive, send_if_open)

    return adapted


def _close_delimited(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """An app whose responses without a length go out as plain bytes until the connection closes."""

    async def adapted(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        undelimited = False

        async def send_plain(event: ASGISendEvent) -> None:
            nonlocal undelimited
            if event["type"] == "http.response.start":
                names = [name.lower() for name, _ in event.get("headers", ())]
                undelimited = b"content-length" not in names
                if undelimited:
                    cycle.chunked_encoding = False
            elif event["type"] == "http.response.body" and undelimited:
                # uvicorn refuses bytes beyond the declared length: declare these.
                cycle.expected_content_length = len(event.get("body", b""))
            await send(event)

        await app(scope, receive, send_plain)

    return adapted

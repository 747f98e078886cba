"""The outermost layer of every HTTP request: its id, its clock, its log line and its last resort.

Pure ASGI: Starlette's BaseHTTPMiddleware hides disconnects and copies every chunk of a stream.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.http.errors import cut_off, internal_error
from server.http.exchange import Exchange, send_error
from server.metrics.registry import Metrics

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
PROBES = frozenset({"/health", "/ready", "/metrics"})
"""Asked every few seconds; logged at debug level only."""

logger = logging.getLogger("server.access")


class ExchangeMiddleware:
    """Surrounds every request with an ``Exchange``; answers HEAD and trailing slashes like GET without.

    Args:
        app: the application.
        metrics: told of each request.
        clock: monotonic seconds.
        root_path: a prefix of paths that makes no difference.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        root_path: str | None = None,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._clock = clock
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection scope; only HTTP ones are surrounded."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = self._begin(scope)
        scope = _as_routed(scope, exchange, self._root_path)
        respond = self._responder(exchange, send)
        try:
            await self._app(scope, receive, respond)
        except asyncio.CancelledError:  # the server ends, and this is what it no longer waits for
            if exchange.status is None:
                await send_error(
                    cut_off("The server shut down before the request was complete.", 1), scope, respond
                )
        except Exception:  # the process edge: whatever it is, the client gets an answer
            logger.exception("fault while handling request %s", exchange.request_id)
            if exchange.status is not None:
                raise
            await send_error(internal_error(), scope, respond)
        finally:
            self._end(exchange, _endpoint(scope))

    def _begin(self, scope: Scope) -> Exchange:
        headers = Headers(scope=scope)
        given, clients_own = headers.get("x-request-id", ""), headers.get("x-client-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        self._metrics.http_in_flight.inc()
        exchange = Exchange(request_id, scope["method"], scope["path"], self._clock())
        if REQUEST_ID.fullmatch(clients_own):
            exchange.notes["client_id"] = clients_own
        return exchange

    def _responder(self, exchange: Exchange, send: Send) -> Send:
        head = exchange.method == "HEAD"

        async def respond(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = exchange.request_id
                headers["openai-processing-ms"] = f"{1000 * (self._clock() - exchange.arrived_at):.0f}"
            elif head:
                message = {**message, "body": b""}
            await send(message)

        return respond

    def _end(self, exchange: Exchange, endpoint: str) -> None:
        seconds = self._clock() - exchange.arrived_at
        method = exchange.method if exchange.method in METHODS else "other"
        status = "none" if exchange.status is None else str(exchange.status)
        self._metrics.http_in_flight.dec()
        self._metrics.http_requests.labels(endpoint, method, status).inc()
        self._metrics.http_seconds.labels(endpoint, method, status).observe(seconds)
        level = logging.DEBUG if exchange.path in PROBES else logging.INFO
        if logger.isEnabledFor(level):
            path = exchange.path.encode("unicode_escape").decode()[:200]
            fields = {"ms": round(1000 * seconds), "id": exchange.request_id, **exchange.notes}
            line = "".join(f" {name}={value}" for name, value in fields.items())
            extra = {
                "fields": {"method": method, "path": path, "status": exchange.status or status, **fields}
            }
            logger.log(level, "%s %s %s%s", method, path, status, line, extra=extra)


def _as_routed(scope: Scope, exchange: Exchange, root_path: str | None) -> Scope:
    """A copy, because the HTTP server goes on using its own scope."""
    routed = {**scope, "exchange": exchange}
    if scope["method"] == "HEAD":
        routed["method"] = "GET"
    if root_path is not None and scope["path"].startswith(root_path + "/"):
        routed["path"] = scope["path"].removeprefix(root_path)
    if len(routed["path"]) > 1:
        routed["path"] = routed["path"].rstrip("/") or "/"
    return routed


def _endpoint(scope: Scope) -> str:
    """The route's template, or ``other``: paths that clients invent are no label values."""
    path = getattr(scope.get("route"), "path", None)
    return path if isinstance(path, str) else "other"

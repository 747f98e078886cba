"""Who may ask, and how much at once. Everything is closed but for a few named paths.

Pure ASGI, before any route is looked for: a path that does not exist is as closed as one that does.
"""

from __future__ import annotations

from collections import Counter

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.http.errors import key_limit_reached, unauthorized
from server.http.exchange import exchange_of, send_error
from server.http.keys import Key, KeyRing
from server.metrics.registry import ENDPOINTS, Metrics

OPEN_PATHS = frozenset({"/health", "/ready"})
"""For probes, which have no key."""


class AuthenticationMiddleware:
    """Refuses requests without a key that is accepted, wherever one is asked for.

    Args:
        app: the application.
        keys: that are accepted.
        open_paths: that need none.
        name: of a key's number in the log.
    """

    def __init__(
        self, app: ASGIApp, keys: KeyRing, open_paths: frozenset[str] = OPEN_PATHS, name: str = "key"
    ) -> None:
        self._app = app
        self._keys = keys
        self._open = open_paths
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let through, or answer 401."""
        if scope["type"] != "http":
            return
        if self._keys.required and scope["path"] not in self._open:
            presented = _presented(Headers(scope=scope))
            key = self._keys.find(presented)
            if key is None:
                await send_error(unauthorized(given=bool(presented)), scope, send)
                return
            exchange = exchange_of(scope)
            exchange.key = key
            exchange.notes[self._name] = key.number
        await self._app(scope, receive, send)


class KeyLimitMiddleware:
    """Refuses what one key asks beyond so many requests at once.

    Args:
        app: the application.
        limit: requests of one key that are served at once.
        metrics: told of those that are refused.
    """

    def __init__(self, app: ASGIApp, limit: int, metrics: Metrics) -> None:
        self._app = app
        self._limit = limit
        self._metrics = metrics
        self._running: Counter[bytes] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let through and count, or answer 429."""
        key = exchange_of(scope).key if scope["type"] == "http" else None
        if key is None or scope["method"] != "POST" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
        elif self._running[key.digest] >= self._limit:
            self._count_refusal(scope["path"])
            await send_error(key_limit_reached(self._limit), scope, self._with_figures(key, send))
        else:
            await self._serve(key, scope, receive, send)

    async def _serve(self, key: Key, scope: Scope, receive: Receive, send: Send) -> None:
        self._running[key.digest] += 1
        try:
            await self._app(scope, receive, self._with_figures(key, send))
        finally:
            self._running[key.digest] -= 1
            if not self._running[key.digest]:
                del self._running[key.digest]

    def _count_refusal(self, path: str) -> None:
        if path in ENDPOINTS:
            self._metrics.received(path).inc()
            self._metrics.rejected(key_limit_reached(self._limit).rejection).inc()

    def _with_figures(self, key: Key, send: Send) -> Send:
        async def respond(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-ratelimit-limit-requests"] = str(self._limit)
                left = max(self._limit - self._running[key.digest], 0)
                headers["x-ratelimit-remaining-requests"] = str(left)
            await send(message)

        return respond


def _presented(headers: Headers) -> list[str]:
    """What a client sent as its key: OpenAI's way, and Anthropic's."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    bearer = [token.strip()] if scheme.lower() == "bearer" and token.strip() else []
    own = headers.get("x-api-key", "").strip()
    return bearer + ([own] if own else [])

"""One HTTP request and its response: what everyone who handles it may know and note."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from starlette.types import Scope, Send

from server.http.errors import ApiError
from server.http.keys import Key


@dataclass(slots=True)
class Exchange:
    """One HTTP request and its response, for everyone who handles it. In ``scope["exchange"]``."""

    request_id: str
    method: str
    path: str
    arrived_at: float
    """Monotonic seconds."""
    status: int | None = None
    """None until the response has started."""
    key: Key | None = None
    """That it came with, where one is asked for."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What handlers add to the log line."""


def exchange_of(scope: Scope) -> Exchange:
    """The exchange that a request belongs to."""
    exchange = scope["exchange"]
    if not isinstance(exchange, Exchange):
        raise TypeError("the request did not come through ExchangeMiddleware")
    return exchange


async def send_error(error: ApiError, scope: Scope, send: Send) -> None:
    """Answer with an error object, from where there is no route yet."""
    body = error.body()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})

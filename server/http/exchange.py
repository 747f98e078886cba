"""One HTTP request and its response: what everyone who handles it may know and note."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from starlette.types import Scope


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
    notes: dict[str, Any] = field(default_factory=dict)
    """What handlers add to the log line."""


def exchange_of(scope: Scope) -> Exchange:
    """The exchange that a request belongs to."""
    exchange = scope["exchange"]
    if not isinstance(exchange, Exchange):
        raise TypeError("the request did not come through ExchangeMiddleware")
    return exchange

"""The HTTP surface as one ASGI application."""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from server.http.authentication import OPEN_PATHS, AuthenticationMiddleware, KeyLimitMiddleware
from server.http.body import ClientDisconnected
from server.http.errors import ApiError, shorten
from server.http.exchange import exchange_of
from server.http.middleware import ExchangeMiddleware
from server.metrics.engine_metrics import EngineCollector
from server.routes.generate import NoResponse, generation_router
from server.routes.models import models_router
from server.routes.operations import operations_router
from server.routes.state import state_router
from server.routes.tokens import tokens_router
from server.schemas.openapi import describe
from server.services import Services

__all__ = ["Services", "create_app"]

EXPOSED_HEADERS = (
    *("X-Request-Id", "Retry-After", "X-Max-Tokens-Clamped", "openai-processing-ms", "Server-Timing"),
    *("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests"),
)
"""That scripts of other origins may read, where --cors-origin lets them."""
DESCRIPTION = 'OpenAI-compatible. Null means "not given" for every optional field of a request.'


def create_app(services: Services) -> FastAPI:
    """The application over its services; call once for each ``Services``."""

    app = bare_app(services, "Tandem")
    app.openapi = partial(describe, app)  # type: ignore[method-assign]
    app.include_router(generation_router(services))
    app.include_router(models_router(services))
    app.include_router(operations_router(services))
    app.include_router(tokens_router(services))
    app.include_router(state_router(services))
    _surround(app, services)
    services.metrics.registry.register(
        EngineCollector(services.model_name, services.engine, services.live, services.engine_restarts)
    )
    return app


def bare_app(services: Services, title: str) -> FastAPI:
    """An application without routes, whose errors are error objects."""
    return FastAPI(
        title=title,
        version=services.version,
        description=DESCRIPTION,
        servers=None if services.settings.root_path is None else [{"url": services.settings.root_path}],
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            ApiError: _answer_error,
            HTTPException: _answer_http_error,
            ClientDisconnected: _answer_nobody,
        },
    )


def _surround(app: FastAPI, services: Services) -> None:
    """What every request passes through on its way to a route; the last one added is the first."""
    settings = services.settings
    if settings.max_requests_per_key:
        limit = settings.max_requests_per_key
        app.add_middleware(KeyLimitMiddleware, limit=limit, metrics=services.metrics)
    open_paths = OPEN_PATHS | ({"/metrics"} if settings.metrics_public else set())
    app.add_middleware(AuthenticationMiddleware, keys=services.keys, open_paths=open_paths)
    if settings.cors_origin:
        # No credentials: keys are sent in headers, which a page sets itself. Preflights carry none.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origin,
            allow_methods=("DELETE", "GET", "POST"),
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
        )
    app.add_middleware(
        ExchangeMiddleware,
        metrics=services.metrics,
        clock=services.clock,
        root_path=settings.root_path,
    )


async def _answer_nobody(*_: object) -> Response:
    """The client has gone before its request was complete."""
    return NoResponse()


async def _answer_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, ApiError):
        raise error
    return Response(error.body(), error.status, error.headers, "application/json")


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """The framework's own refusals: no such path, no such method."""
    if not isinstance(error, HTTPException):
        raise error
    path, method = shorten(exchange_of(request.scope).path), exchange_of(request.scope).method
    if error.status_code == 405:
        message = f"The method {shorten(method)} is not allowed for {path}."
    else:
        message = f"The path {path} does not exist on this server."
    headers = dict(error.headers or {})
    if "GET" in headers.get("Allow", ""):
        headers["Allow"] += ", HEAD"
    return await _answer_error(request, ApiError(error.status_code, message, code=None, headers=headers))

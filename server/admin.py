"""What those who run the server may do, on a listener of its own: nothing of it is reachable by clients."""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI, Request

from server.app import bare_app
from server.http.authentication import AuthenticationMiddleware
from server.http.keys import KeyRing
from server.http.middleware import ExchangeMiddleware
from server.routes.operations import operations_router
from server.routes.reading import read_request
from server.routes.state import ABORT_ERRORS, add_state_routes, requests_router
from server.schemas.openapi import describe, error_responses, request_body
from server.schemas.tokens import AbortAnyRequest, Aborted, Flushed
from server.services import Services
from server.validation import ready_engine


def create_admin_app(services: Services, keys: KeyRing) -> FastAPI:
    """The application for operators.

    Args:
        services: those of the other application.
        keys: that operators may come with.
    """
    app = bare_app(services, "Tandem, for those who run it")
    app.openapi = partial(describe, app)  # type: ignore[method-assign]
    app.include_router(operations_router(services))
    app.include_router(requests_router(services))
    add_state_routes(app.router, services)

    @app.post("/abort_request", openapi_extra=request_body(AbortAnyRequest), responses=ABORT_ERRORS)
    async def abort_request(request: Request) -> Aborted:
        """End one request or all."""
        body = await read_request(request, services, AbortAnyRequest)
        return Aborted(aborted=services.generations.abort_any(body.request_id))

    @app.post("/flush_cache", responses=error_responses(503))
    async def flush_cache() -> Flushed:
        """Forget the prefixes that no live request uses."""
        ready_engine(services)
        services.engine.flush_cache()
        return Flushed(flushed=True)

    app.add_middleware(AuthenticationMiddleware, keys=keys, name="admin_key")
    app.add_middleware(ExchangeMiddleware, metrics=services.metrics, clock=services.clock)
    return app

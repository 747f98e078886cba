"""GET /health, /ready, /metrics and /version: for probes, dashboards and support."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from server.engine_client.protocol import EngineState
from server.schemas.openapi import error_responses
from server.schemas.responses import Health, Version
from server.services import Services
from server.validation import ready_engine


def operations_router(services: Services) -> APIRouter:
    """The routes for those who run the server. None of them waits for the engine."""
    router = APIRouter()

    @router.get("/health", responses={200: {"model": Health}, 503: {"model": Health}})
    async def health() -> Response:
        """Whether this process works: 503 only when its engine is gone for good."""
        state = services.engine.state
        failed = state is EngineState.FAILED
        body = Health(status="failed" if failed else "ok", engine=state.value)
        return JSONResponse(body.model_dump(), 503 if failed else 200)

    @router.get("/ready", responses=error_responses(503))
    async def ready() -> Health:
        """Whether requests are taken now."""
        ready_engine(services)
        return Health(status="ok", engine=services.engine.state.value)

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics(request: Request) -> Response:
        """Figures for Prometheus, in its text format or OpenMetrics."""
        body, content_type = services.metrics.render(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    @router.get("/version")
    async def version() -> Version:
        """This program's version."""
        return Version(version=services.version)

    return router

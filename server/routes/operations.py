"""GET /health, /ready, /metrics and /version: for probes, dashboards and support."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from server.engine_client.protocol import EngineState, QueueFull
from server.http.errors import queue_full
from server.schemas.openapi import error_responses
from server.schemas.responses import Health, Version
from server.services import Services
from server.validation import ready_engine


def operations_router(services: Services) -> APIRouter:
    """The routes for those who run the server. None of them waits for the engine."""
    router = APIRouter()

    @router.get("/health", responses={200: {"model": Health}, 503: {"model": Health}})
    async def health() -> Response:
        """Whether this process works: 503 when its engine is gone for good, or has work and does none."""
        body = _health(services)
        return JSONResponse(body.model_dump(), 200 if body.status == "ok" else 503)

    @router.get("/ready", responses=error_responses(503))
    async def ready() -> Health:
        """Whether requests are taken now."""
        ready_engine(services)
        try:
            services.engine.check_room()
        except QueueFull as error:
            raise queue_full(error) from None
        return _health(services)

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


def _health(services: Services) -> Health:
    engine = services.engine.health
    failed = services.engine.state is EngineState.FAILED
    return Health(
        status="failed" if failed else "stalled" if engine.stalled else "ok",
        engine=services.engine.state.value,
        requests=engine.requests,
        heartbeat_age=_rounded(engine.heartbeat_age),
        iteration_age=_rounded(engine.iteration_age),
    )


def _rounded(age: float | None) -> float | None:
    return None if age is None else round(age, 3)

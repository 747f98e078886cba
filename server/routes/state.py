"""GET /load, /server_info and /requests, POST /abort_request: the server's state, and a way to change it."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Request

from configs.loader import options
from configs.settings import Settings
from scheduler.tier import Tier
from server.generation.live import LiveGeneration
from server.http.exchange import exchange_of
from server.routes.reading import read_request
from server.schemas.openapi import error_responses, request_body
from server.schemas.tokens import Aborted, AbortRequest, LiveRequest, LiveRequests, Load, ServerInfo
from server.services import Services

ABORT_ERRORS = error_responses(400, 408, 413, 415)


def state_router(services: Services) -> APIRouter:
    """What every client may see and do."""
    router = APIRouter()
    if services.settings.expose_requests:
        router.include_router(requests_router(services))
    add_state_routes(router, services)

    @router.post("/abort_request", openapi_extra=request_body(AbortRequest), responses=ABORT_ERRORS)
    async def abort_request(request: Request) -> Aborted:
        """End a request that came with the same key."""
        body = await read_request(request, services, AbortRequest)
        key = exchange_of(request.scope).key
        return Aborted(aborted=services.generations.abort(body.request_id, key))

    return router


def add_state_routes(router: APIRouter, services: Services) -> None:
    """What clients and operators may see."""
    started = services.clock()

    @router.get("/load")
    async def load() -> Load:
        """How busy the server is."""
        return current_load(services)

    @router.get("/server_info")
    async def server_info() -> ServerInfo:
        """What the server is, and how it was started."""
        engine = services.engine
        plan = engine.stats.plan if engine.stats else None
        return ServerInfo(
            version=services.version,
            model=services.model_name,
            state=engine.state.value,
            uptime_seconds=round(services.clock() - started, 3),
            engine=msgspec.to_builtins(engine.facts),
            plan=msgspec.to_builtins(plan),
            settings=shown_settings(services.settings),
        )


def requests_router(services: Services) -> APIRouter:
    """Who is served; no texts."""
    router = APIRouter()

    @router.get("/requests")
    async def requests() -> LiveRequests:
        """The requests that are being served now."""
        now = services.clock()
        return LiveRequests(requests=[_described(one, now) for one in services.generations])

    return router


def current_load(services: Services) -> Load:
    """From the same figures as the metrics."""
    stats, facts, live = services.engine.stats, services.engine.facts, services.live
    total = (facts.device_kv_pages, facts.host_kv_pages) if facts else (0, 0)
    used = (stats.device_pages_used, stats.host_pages_used) if stats else (0, 0)
    usage = [some / pages if pages else 0.0 for some, pages in zip(used, total, strict=True)]
    tiers = (Tier.DEVICE.value, Tier.HOST.value)
    return Load(
        server_load=live.with_output + live.without_output,
        requests_running=live.with_output,
        requests_waiting=live.without_output,
        max_running=services.settings.max_running,
        max_queue=services.settings.queue_limit,
        sequences_running=stats.sequences_running if stats else 0,
        sequences_waiting=stats.sequences_waiting if stats else 0,
        kv_pages_total=dict(zip(tiers, total, strict=True)),
        kv_pages_used=dict(zip(tiers, used, strict=True)),
        kv_usage_ratio=dict(zip(tiers, usage, strict=True)),
    )


def shown_settings(settings: Settings) -> dict[str, Any]:
    """All of them; of secrets only how many there are."""
    shown: dict[str, Any] = {}
    for option in options():
        value = getattr(settings, option.name)
        shown[option.name] = len(value or ()) if option.is_secret else value
    return shown


def _described(one: LiveGeneration, now: float) -> LiveRequest:
    record, job = one.record, one.job
    return LiveRequest(
        id=job.response_id,
        request_id=record.exchange.request_id,
        endpoint=job.endpoint,
        model=job.model,
        stream=job.stream,
        state=one.state,
        seconds=round(now - record.exchange.arrived_at, 3),
        prompt_tokens=job.prompt_tokens,
        output_tokens=record.generated_tokens,
        tiers=sorted(record.tiers),
        key=record.exchange.key.number if record.exchange.key else None,
    )

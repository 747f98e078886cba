"""The server's state for routers and operators, and requests that are ended by somebody else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from server.admin import create_admin_app
from server.app import create_app
from server.http.authentication import OPEN_PATHS
from server.http.keys import KeyRing
from server.services import Services
from tests.server.fake_engine_process import stats
from tests.server.fakes import MODEL, FakeEngine, alphabet, make_services

pytestmark = pytest.mark.anyio
BODY = {"model": MODEL, "prompt": "secret prompt", "max_tokens": 200}
OURS, THEIRS = {"x-api-key": "ours"}, {"x-api-key": "theirs"}
OPERATOR = {"Authorization": "Bearer op"}


@pytest.fixture
def services(engine: FakeEngine) -> Services:
    engine.script, engine.pause = alphabet, 0.001
    keys = KeyRing(("ours", "theirs"))
    return make_services(engine, keys=keys, expose_requests=True, api_key=("ours", "theirs"), admin_key="op")


@pytest.fixture
async def admin(services: Services) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_admin_app(services, KeyRing(("op",))), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://admin", headers=OPERATOR) as client:
        yield client


async def begun(engine: FakeEngine, number: int) -> None:
    while sum(batches > 2 for batches in engine.produced.values()) < number:
        await asyncio.sleep(0.001)


async def test_requests_that_are_served(
    http: httpx.AsyncClient, admin: httpx.AsyncClient, engine: FakeEngine
) -> None:
    asked = asyncio.create_task(
        http.post("/v1/completions", json=BODY, headers={**THEIRS, "x-request-id": "a"})
    )
    await begun(engine, 1)
    for client, headers in ((http, OURS), (admin, OPERATOR)):
        answer = await client.get("/requests", headers=headers)
        (shown,) = answer.json()["requests"]
        assert shown["id"].startswith("cmpl-") and shown["request_id"] == "a"
        assert (shown["endpoint"], shown["state"], shown["stream"]) == ("/v1/completions", "decode", False)
        assert shown["prompt_tokens"] == len("secret prompt") and shown["output_tokens"] > 1
        assert shown["key"] == 2 and shown["tiers"] == ["cpu"] and shown["seconds"] > 0
        assert "secret" not in answer.text
    load = (await http.get("/load", headers=OURS)).json()
    assert (load["server_load"], load["requests_running"], load["requests_waiting"]) == (1, 1, 0)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)


async def test_a_client_ends_its_own_requests_only(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    asked = asyncio.create_task(
        http.post("/v1/completions", json=BODY, headers={**OURS, "x-request-id": "a"})
    )
    await begun(engine, 1)
    for headers, name, count in ((THEIRS, "a", 0), (OURS, "b", 0), (OURS, "a", 1)):
        answer = await http.post("/abort_request", json={"request_id": name}, headers=headers)
        assert answer.json() == {"aborted": count}
    ended = await asked
    assert (ended.status_code, ended.json()["error"]["code"]) == (500, "request_aborted")
    assert ended.headers["x-should-retry"] == "false"
    assert not engine.live
    assert (await http.get("/requests", headers=OURS)).json() == {"requests": []}
    figures = (await http.get("/metrics", headers=OURS)).text
    assert f'finished_total{{endpoint="/v1/completions",model_name="{MODEL}",reason="abort"}} 1.0' in figures


async def test_operators_end_all(
    http: httpx.AsyncClient, admin: httpx.AsyncClient, engine: FakeEngine
) -> None:
    bodies = [BODY, {**BODY, "stream": True}]
    asked = [asyncio.create_task(http.post("/v1/completions", json=body, headers=OURS)) for body in bodies]
    await begun(engine, 2)
    assert (await admin.post("/abort_request", json={})).status_code == 400
    assert (await admin.post("/abort_request", json={"all": True})).json() == {"aborted": 2}
    whole, stream = [await one for one in asked]
    assert whole.status_code == 500
    *_, error, done = [line[6:] for line in stream.text.splitlines() if line.startswith("data: ")]
    assert json.loads(error)["error"]["code"] == "request_aborted" and done == "[DONE]"


async def test_operators_flush_the_cache(admin: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert (await admin.post("/flush_cache")).json() == {"flushed": True}
    assert engine.flushes == 1


async def test_operators_have_a_key_of_their_own(admin: httpx.AsyncClient, http: httpx.AsyncClient) -> None:
    document = (await admin.get("/openapi.json")).json()
    for path, methods in document["paths"].items():
        for method in methods:
            answer = await admin.request(method, path, headers={"Authorization": "Bearer ours"})
            assert answer.status_code == (200 if path in OPEN_PATHS else 401), path
    for path in ("/flush_cache", "/requests"):
        assert (await http.post(path, headers={**OURS, **OPERATOR})).status_code in (404, 405)
    assert (await http.get("/load", headers=OPERATOR)).status_code == 401


async def test_what_the_server_is(
    http: httpx.AsyncClient, admin: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.stats = stats(1, 2)
    for client, headers in ((http, OURS), (admin, OPERATOR)):
        answer = await client.get("/server_info", headers=headers)
        info: dict[str, Any] = answer.json()
        assert (info["version"], info["model"], info["state"]) == ("1.2.3", MODEL, "ready")
        assert info["engine"]["context_length"] == 256 and info["plan"]["mode"]
        assert info["settings"]["max_running"] == 64
        assert info["settings"]["api_key"] == 2 and info["settings"]["admin_key"]
        assert '"ours"' not in answer.text and '"theirs"' not in answer.text and '"op"' not in answer.text


async def test_the_list_is_closed_unless_it_is_asked_for(engine: FakeEngine) -> None:
    transport = httpx.ASGITransport(create_app(make_services(engine)))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        assert (await http.get("/requests")).status_code == 404
        assert (await http.get("/load")).json()["max_queue"] == 256

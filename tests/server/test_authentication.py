"""Who is let in: every route but the open ones needs a key, whatever else is wrong with the request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx
import pytest

from server.app import create_app
from server.http.authentication import OPEN_PATHS
from server.http.keys import KeyRing
from server.schemas.responses import ErrorAnswer
from tests.server.fakes import MODEL, FakeEngine, make_services

pytestmark = pytest.mark.anyio

GOOD = {"Authorization": "Bearer s3cret"}
BODY = {"model": MODEL, "prompt": "x", "max_tokens": 2}
Client = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def client(engine: FakeEngine) -> Client:
    @asynccontextmanager
    async def make(*keys: str, **settings: object) -> AsyncIterator[httpx.AsyncClient]:
        services = make_services(engine, keys=KeyRing(keys or ("s3cret", "other")), **settings)
        transport = httpx.ASGITransport(create_app(services), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as one:
            yield one

    return make


async def test_every_route_without_a_key_is_closed_but_the_open_ones(client: Client) -> None:
    async with client() as http:
        document = (await http.get("/openapi.json", headers=GOOD)).json()
        assert {"/v1/chat/completions", "/metrics", "/health"} < set(document["paths"])
        for path, methods in [*document["paths"].items(), ("/openapi.json", ("get",))]:
            for method in methods:
                answer = await http.request(method, re.sub(r"{.*}", "x", path))
                if path in OPEN_PATHS:
                    assert answer.status_code == 200, path
                else:
                    assert_refused(answer)


def assert_refused(answer: httpx.Response) -> None:
    assert answer.status_code == 401, answer.request.url
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "x-request-id" in answer.headers
    error = ErrorAnswer.model_validate_json(answer.content).error
    assert (error.type, error.code, error.param) == ("invalid_request_error", "invalid_api_key", None)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer s3cre"},
        {"Authorization": "s3cret"},
        {"Authorization": "Basic s3cret"},
        {"x-api-key": "s3cret2"},
        {"api-key": "s3cret"},
        {"Authorization": "Bearer " + "x" * 10_000},
    ],
)
async def test_wrong_keys(client: Client, headers: Mapping[str, str]) -> None:
    async with client() as http:
        answer = await http.post("/v1/completions", json=BODY, headers=headers)
    assert_refused(answer)
    assert "s3cre" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        GOOD,
        {"Authorization": "bearer  other"},
        {"x-api-key": "s3cret"},
        {"Authorization": "Bearer dummy", "x-api-key": "s3cret"},
    ],
)
async def test_right_keys(client: Client, headers: Mapping[str, str]) -> None:
    async with client() as http:
        assert (await http.post("/v1/completions", json=BODY, headers=headers)).status_code == 200


@pytest.mark.parametrize("path", ["/nope", "//health", "/health/x", "/Health", "/metrics", "/ready%00"])
async def test_other_paths_are_closed_too(client: Client, path: str) -> None:
    async with client() as http:
        assert_refused(await http.get("http://test" + path))
        assert (await http.head("/health/")).status_code == 200
        assert (await http.options("/v1/models")).status_code == 401


async def test_metrics_can_be_public(client: Client) -> None:
    async with client(metrics_public=True) as http:
        assert (await http.get("/metrics")).status_code == 200
        assert_refused(await http.get("/v1/models"))


async def test_logs_name_a_key_by_its_number(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with client() as http:
        await http.get("/v1/models", headers={"x-api-key": "other"})
        await http.get("/v1/models", headers={"x-api-key": "0ther"})
    assert "key=2" in caplog.text
    assert "other" not in caplog.text and "0ther" not in caplog.text


# -- several requests of one key


async def test_a_key_has_its_requests_at_once_and_no_more(client: Client, engine: FakeEngine) -> None:
    engine.held = True
    async with client(max_requests_per_key=2) as http:
        running = [
            asyncio.create_task(http.post("/v1/completions", json=BODY, headers=GOOD)) for _ in range(2)
        ]
        while len(engine.live) < 2:
            await asyncio.sleep(0)
        refused = await http.post("/v1/completions", json=BODY, headers=GOOD)
        other = asyncio.create_task(http.post("/v1/completions", json=BODY, headers={"x-api-key": "other"}))
        listed = await http.get("/v1/models", headers=GOOD)
        engine.held = False
        answers = [await one for one in [*running, other]]
        again = await http.post("/v1/completions", json=BODY, headers=GOOD)
    error = ErrorAnswer.model_validate_json(refused.content).error
    assert (refused.status_code, error.type, error.code) == (429, "rate_limit_error", "rate_limit_exceeded")
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert listed.status_code == 200
    assert [answer.status_code for answer in [*answers, again]] == [200] * 4
    assert again.headers["x-ratelimit-limit-requests"] == "2"
    assert again.headers["x-ratelimit-remaining-requests"] == "1"


# -- other origins


async def test_without_origins_nothing_is_said_to_browsers(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/models", headers={"Origin": "https://a.example"})
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("allowed", "origin", "said"),
    [
        (("https://a.example",), "https://a.example", "https://a.example"),
        (("https://a.example",), "https://b.example", None),
        (("*",), "https://b.example", "*"),
    ],
)
async def test_origins(client: Client, allowed: tuple[str, ...], origin: str, said: str | None) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, x-a"}
    async with client(cors_origin=allowed) as http:
        preflight = await http.options("/v1/chat/completions", headers={"Origin": origin, **asks})
        answer = await http.get("/v1/models", headers={"Origin": origin, **GOOD})
        refused = await http.get("/v1/models", headers={"Origin": origin})
    assert preflight.status_code == (200 if said else 400), "answered before a key is asked for"
    for one in (preflight, answer, refused):
        assert one.headers.get("access-control-allow-origin") == said
        assert "access-control-allow-credentials" not in one.headers
    if said:
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
    assert (answer.status_code, refused.status_code) == (200, 401)

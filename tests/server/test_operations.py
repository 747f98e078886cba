"""Models, probes, versions, wrong paths and methods, and the OpenAPI document."""

from __future__ import annotations

import httpx
import pytest

from server.app import create_app
from server.schemas.chat import ChatCompletionRequest
from server.schemas.responses import ErrorAnswer, Health, ModelList
from tests.server.fakes import MODEL, make_services

pytestmark = pytest.mark.anyio


async def test_models(http):
    listed = await http.get("/v1/models")
    (model,) = ModelList.model_validate_json(listed.content).data
    assert model.id == MODEL
    one = await http.get(f"/v1/models/{MODEL}")
    assert one.json() == model.model_dump()
    escaped = await http.get("/v1/models/org%2Ftiny")
    assert escaped.json() == one.json()
    missing = await http.get("/v1/models/other")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


async def test_probes(http):
    for path in ("/health", "/ready"):
        answer = await http.get(path)
        health = Health.model_validate_json(answer.content)
        assert (health.status, health.engine, health.requests) == ("ok", "ready", 0)
    assert (await http.get("/version")).json() == {"version": "1.2.3"}


@pytest.mark.parametrize("path", ["/", "/nope", "/v1", "/v1/chat", "/docs", "/v1/embeddings", "/a//"])
async def test_unknown_paths(http, path):
    for method in ("GET", "POST"):
        answer = await http.request(method, path)
        assert answer.status_code == 404
        error = ErrorAnswer.model_validate_json(answer.content).error
        assert (error.code, error.param) == (None, None)
        assert path in error.message


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", {"POST"}),
        ("HEAD", "/v1/chat/completions", {"POST"}),
        ("PUT", "/v1/completions", {"POST"}),
        ("POST", "/v1/models", {"GET", "HEAD"}),
        ("OPTIONS", "/health", {"GET", "HEAD"}),
        ("DELETE", f"/v1/models/{MODEL}", {"GET", "HEAD"}),
    ],
)
async def test_wrong_methods(http, method, path, allowed):
    answer = await http.request(method, path)
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == allowed
    if method != "HEAD":
        assert method in ErrorAnswer.model_validate_json(answer.content).error.message


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/ready", "/version", "/metrics", "/openapi.json"])
async def test_head_and_trailing_slashes(http, path):
    get = await http.get(path + "/")
    assert get.status_code == 200 and get.content
    head = await http.head(path)
    assert head.status_code == 200 and head.content == b""
    assert head.headers["content-type"] == get.headers["content-type"]


async def test_posting_with_a_trailing_slash(http):
    body = {"model": MODEL, "prompt": "x"}
    assert (await http.post("/v1/completions/", json=body)).status_code == 200


async def test_the_openapi_document(http):
    document = (await http.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    assert set(document["paths"]) == {
        *("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{model_id}"),
        *("/health", "/ready", "/metrics", "/version", "/load", "/server_info", "/abort_request"),
        *("/tokenize", "/detokenize", "/apply-template"),
    }
    post = document["paths"]["/v1/chat/completions"]["post"]
    assert post["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/ChatCompletionRequest"
    }
    assert set(post["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert {"400", "404", "413", "415", "500", "503"} < set(post["responses"])
    request = schemas["ChatCompletionRequest"]
    assert set(request["properties"]) == set(ChatCompletionRequest.model_fields)
    assert request["required"] == ["model", "messages"]
    assert request["additionalProperties"] is False
    assert request["properties"]["n"] == {
        "default": 1,
        "maximum": 128,
        "minimum": 1,
        "title": "N",
        "type": "integer",
    }
    for reference in _references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [reference for child in value.values() for reference in _references(child)]
    if isinstance(value, list):
        return [reference for child in value for reference in _references(child)]
    return []


async def test_a_full_queue_is_not_ready(http, engine):
    engine.queue_limit = 0
    answer = await http.get("/ready")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_overloaded")
    assert answer.headers["retry-after"] == "4"
    assert (await http.get("/health")).status_code == 200


@pytest.mark.parametrize(
    "path", ["/llm/v1/models", "/llm/health", "/llm/openapi.json", "/v1/models", "/llm/v1/models/"]
)
async def test_everything_is_under_the_root_path_too(engine, path):
    transport = httpx.ASGITransport(create_app(make_services(engine, root_path="/llm")))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        assert (await http.get(path)).status_code == 200
        missing = await http.get("/llmx/v1/models")
        document = (await http.get("/openapi.json")).json()
    assert missing.status_code == 404 and "/llmx/v1/models" in missing.json()["error"]["message"]
    assert document["servers"] == [{"url": "/llm"}]

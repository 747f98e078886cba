"""What can't be served: wrong bodies, wrong moments and failing engines. Nothing may stay behind."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from scheduler.types import FinishReason
from server.app import create_app
from server.engine_client.protocol import EngineState
from server.schemas.responses import ErrorAnswer
from tests.server.fakes import CONTEXT, MODEL, VOCAB, FakeEngine, alphabet, make_services
from tests.server.sse import events

pytestmark = pytest.mark.anyio
HI = [{"role": "user", "content": "hi"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
GOOD = {CHAT: {"model": MODEL, "messages": HI}, COMPLETIONS: {"model": MODEL, "prompt": "hi"}}


def details(answer) -> dict:
    """The error object of an answer, its form checked."""
    assert answer.headers["content-type"] == "application/json"
    error = ErrorAnswer.model_validate_json(answer.content, strict=True).error
    assert answer.headers["x-request-id"]
    for secret in ("Traceback", "pydantic", "msgspec", "site-packages", "File ", "server/"):
        assert secret not in error.message
    return error.model_dump()


async def refused(http, path, body, **keywords) -> dict:
    """An error object with its status; the server is well afterwards."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json", **keywords.get("headers", {})}
    answer = await http.post(path, content=content, headers=headers)
    assert answer.status_code >= 400, answer.text
    assert (await http.get("/health")).status_code == 200
    return {"status": answer.status_code, **details(answer)}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b"^", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"42", "must be a JSON object"),
        (b'{"model":"m",}', "trailing comma"),
        (b'{"temperature":NaN}', "not valid JSON"),
        (b'{"temperature":1e400}', "number out of range"),
        (b'{"temperature":Infinity}', "not valid JSON"),
        (b'{"model":"\\ud800"}', "lone surrogate"),
        (b'{"model":"\\udc00 x"}', "surrogate"),
        (b'{"model":"\xff"}', "UTF-8"),
        (b'{"model":' + b"[" * 100 + b"]" * 100 + b"}", "64 levels"),
        (b'{"model":' * 20_000, "64 levels"),
        (b'{"n":' + b"1" * 50_000 + b"}", "out of range"),
    ],
)
async def test_what_is_no_json_object(http, engine, path, body, words):
    error = await refused(http, path, body)
    assert (error["status"], error["code"], error["param"]) == (400, "invalid_json", None)
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    assert engine.requests == []


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/json; charset=latin-1", 400),
    ],
)
async def test_wrong_content_types(http, content_type, status):
    error = await refused(http, CHAT, GOOD[CHAT], headers={"content-type": content_type})
    assert (error["status"], error["code"]) == (status, "invalid_json")


@pytest.mark.parametrize("content_type", ["application/json; charset=UTF-8", "application/vnd.x+json"])
async def test_right_content_types(http, content_type):
    content = json.dumps(GOOD[CHAT])
    answer = await http.post(CHAT, content=content, headers={"content-type": content_type})
    assert answer.status_code == 200
    request = http.build_request("POST", CHAT, content=content)
    request.headers.pop("content-type", None)
    assert (await http.send(request)).status_code == 200


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_limit(http, engine, declared):
    body = json.dumps({**GOOD[CHAT], "user": "x" * 10_000_000}).encode()

    async def pieces():
        for start in range(0, len(body), 1 << 20):
            yield body[start : start + (1 << 20)]

    headers = {"content-type": "application/json"}
    answer = await http.post(CHAT, content=body if declared else pieces(), headers=headers)
    assert answer.status_code == 413
    assert details(answer)["code"] == "request_too_large"
    assert engine.requests == []


async def test_a_body_of_exactly_the_limit(engine):
    services = make_services(engine, max_body_mib=0.25)
    transport = httpx.ASGITransport(create_app(services))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        for extra, status in ((0, 200), (1, 413)):
            body = json.dumps(GOOD[CHAT]).encode()
            body += b" " * (256 * 1024 + extra - len(body))
            headers = {"content-type": "application/json"}
            assert (await http.post(CHAT, content=body, headers=headers)).status_code == status


@pytest.mark.parametrize(
    ("path", "fields", "status", "code", "param"),
    [
        (CHAT, {"model": "gpt-4"}, 404, "model_not_found", "model"),
        (COMPLETIONS, {"model": "x" * 9999}, 404, "model_not_found", "model"),
        (CHAT, {"messages": []}, 400, "empty_array", "messages"),
        (CHAT, {"stream_options": {}, "stream": None}, 400, "invalid_value", "stream_options"),
        (CHAT, {"top_logprobs": 2}, 400, "invalid_value", "top_logprobs"),
        (CHAT, {"logit_bias": {str(VOCAB): 1}}, 400, "invalid_value", "logit_bias"),
        (CHAT, {"logit_bias": {"99999999": 5}}, 400, "invalid_value", "logit_bias"),
        (CHAT, {"stop_token_ids": [VOCAB]}, 400, "invalid_value", "stop_token_ids"),
        (CHAT, {"max_tokens": 4, "min_tokens": 5}, 400, "integer_above_max_value", "min_tokens"),
        (CHAT, {"chat_template_kwargs": {"fail": "no, thanks"}}, 400, "chat_template_error", "messages"),
        (CHAT, {"chat_template_kwargs": {"messages": []}}, 400, "invalid_value", "chat_template_kwargs"),
        (CHAT, {"continue_final_message": True}, 400, "invalid_value", "continue_final_message"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": "x" * CONTEXT}]},
            400,
            "context_length_exceeded",
            "messages",
        ),
        (CHAT, {"messages": [{"role": "user", "content": "x " * 200_000}]}, 400, None, "messages"),
        (COMPLETIONS, {"prompt": "x" * 250}, 400, "context_length_exceeded", "prompt"),
        (COMPLETIONS, {"prompt": [7] * CONTEXT, "max_tokens": 1}, 400, "context_length_exceeded", "prompt"),
        (COMPLETIONS, {"max_tokens": 10**18}, 400, "context_length_exceeded", "prompt"),
        (COMPLETIONS, {"max_tokens": 10**30}, 400, "integer_above_max_value", "max_tokens"),
        (COMPLETIONS, {"prompt": ["a", "x" * 300]}, 400, "context_length_exceeded", "prompt"),
        (COMPLETIONS, {"prompt": ""}, 400, "empty_string", "prompt"),
        (COMPLETIONS, {"prompt": [999999999]}, 400, "invalid_value", "prompt"),
        (COMPLETIONS, {"prompt": [VOCAB]}, 400, "invalid_value", "prompt"),
        (COMPLETIONS, {"prompt": [1, -1]}, 400, "invalid_value", "prompt"),
        (COMPLETIONS, {"prompt": [[-1]]}, 400, "invalid_value", "prompt"),
        (COMPLETIONS, {"prompt": ["x"] * 400}, 400, "array_above_max_length", "prompt"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_wrong_requests(http, engine, path, fields, status, code, param, stream):
    error = await refused(http, path, {**GOOD[path], "stream": stream, **fields})
    assert (error["status"], error["param"]) == (status, param)
    assert code is None or error["code"] == code
    assert error["type"] == "invalid_request_error"
    assert engine.requests == [] and not engine.live


async def test_messages_tell_limits_and_counts(http):
    error = await refused(http, COMPLETIONS, {**GOOD[COMPLETIONS], "prompt": [7] * 250, "max_tokens": 20})
    assert "256 tokens" in error["message"]
    assert "270 tokens (250 in the prompt, 20 for the output)" in error["message"]
    error = await refused(http, CHAT, {**GOOD[CHAT], "chat_template_kwargs": {"fail": "no, thanks"}})
    assert "no, thanks" in error["message"]


@pytest.mark.parametrize(
    ("state", "code", "retry_after"),
    [
        (EngineState.STARTING, "model_loading", "5"),
        (EngineState.RESTARTING, "model_loading", "5"),
        (EngineState.DRAINING, "server_draining", "5"),
        (EngineState.FAILED, "engine_error", None),
    ],
)
async def test_moments_when_no_request_is_taken(http, engine, state, code, retry_after):
    engine.state = state
    for stream in (False, True):
        answer = await http.post(CHAT, json={**GOOD[CHAT], "stream": stream})
        assert answer.status_code == 503
        error = details(answer)
        assert (error["type"], error["code"], error["param"]) == ("server_error", code, None)
        assert answer.headers.get("retry-after") == retry_after
    assert (await http.get("/ready")).status_code == 503
    alive = await http.get("/health")
    assert alive.status_code == (503 if state is EngineState.FAILED else 200)
    assert alive.json()["engine"] == state.value
    assert (await http.get("/v1/models")).status_code == 200


async def test_the_engine_may_become_unavailable_between_check_and_submission(http, engine):
    submit = engine.submit

    def late(request):
        engine.state = EngineState.DRAINING
        return submit(request)

    engine.submit = late
    answer = await http.post(CHAT, json={**GOOD[CHAT], "stream": True})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "8")
    assert details(answer)["code"] == "server_draining"


async def test_a_full_queue(http, engine):
    engine.queue_limit, engine.held = 2, True
    accepted = [asyncio.create_task(http.post(CHAT, json=GOOD[CHAT])) for _ in range(2)]
    while len(engine.live) < 2:
        await asyncio.sleep(0.001)
    for _ in range(5):
        answer = await http.post(CHAT, json={**GOOD[CHAT], "stream": True})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "4")
        assert details(answer)["code"] == "server_overloaded"
        assert (await http.get("/health")).status_code == 200
    engine.held = False
    assert [answer.status_code for answer in await asyncio.gather(*accepted)] == [200, 200]
    scraped = (await http.get("/metrics")).text
    assert 'requests_rejected_total{model_name="org/tiny",reason="queue_full"} 5.0' in scraped


async def test_of_several_prompts_all_are_queued_or_none(http, engine):
    engine.queue_limit = 2
    answer = await http.post(COMPLETIONS, json={**GOOD[COMPLETIONS], "prompt": ["a", "b", "c"]})
    assert answer.status_code == 503
    assert len(engine.aborted) == 2 and not engine.live


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("batches", [0, 3])
@pytest.mark.parametrize("failure", ["die_after", "fail_after"])
async def test_an_engine_fault(http, engine: FakeEngine, path, batches, failure):
    engine.script = alphabet
    setattr(engine, failure, batches)
    answer = await http.post(path, json={**GOOD[path], "n": 2, "max_tokens": 10})
    assert answer.status_code == 500
    error = details(answer)
    assert (error["type"], error["code"]) == ("server_error", "engine_error")
    assert failure == "die_after" or error["message"] == "no pages"

    streamed = await http.post(path, json={**GOOD[path], "n": 2, "max_tokens": 10, "stream": True})
    assert streamed.status_code == 200
    *chunks, last = events(streamed.text)
    assert last == {"error": error}
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    texts = [chunk["choices"][0]["index"] for chunk in chunks]
    assert len(texts) == 2 * (batches + (batches > 0 and path == CHAT))
    assert failure == "die_after" or not engine.live
    scraped = (await http.get("/metrics")).text
    endpoint = f'endpoint="{path}",model_name="org/tiny",reason="error"'
    assert f"requests_finished_total{{{endpoint}}} 2.0" in scraped
    assert 'tandem_requests_running{model_name="org/tiny"} 0.0' in scraped


async def test_a_fault_in_the_stream_of_outputs_ends_the_request(http, engine):
    engine.script, engine.die_after, engine.death = alphabet, 2, ZeroDivisionError
    for stream in (False, True):
        answer = await http.post(COMPLETIONS, json={**GOOD[COMPLETIONS], "stream": stream})
        error = events(answer.text)[-1]["error"] if stream else details(answer)
        assert error["code"] == "engine_error"
    assert not engine.live


@pytest.mark.parametrize(
    ("failure", "code"), [(FinishReason.ABORT, "server_draining"), (FinishReason.ERROR, "engine_error")]
)
async def test_a_request_that_ends_early_while_draining(http, engine, failure, code):
    engine.script, engine.fail_after, engine.failure = alphabet, 2, failure
    submit = engine.submit

    def then_drain(request):
        stream = submit(request)
        engine.state = EngineState.DRAINING
        return stream

    engine.submit = then_drain
    answer = await http.post(COMPLETIONS, json={**GOOD[COMPLETIONS], "stream": True})
    error = events(answer.text)[-1]["error"]
    assert (error["code"], error["message"]) == (code, "no pages")


async def test_an_internal_fault_is_an_error_object_and_logged(http, engine, caplog):
    def broken(request):
        raise ZeroDivisionError("secret")

    engine.submit = broken
    answer = await http.post(CHAT, json=GOOD[CHAT])
    assert answer.status_code == 500
    assert details(answer)["code"] == "internal_error"
    assert "secret" not in answer.text
    assert "ZeroDivisionError: secret" in caplog.text


@pytest.mark.parametrize("value", [b"[],", b"1,", b'"a",', b'{"a":1},'])
async def test_millions_of_values_are_refused_before_they_are_decoded(http, engine, value):
    body = b'{"prompt":[' + value * (3_000_000 // len(value)) + b"1]}"
    error = await refused(http, COMPLETIONS, body)
    assert (error["status"], error["code"]) == (413, "request_too_large")
    assert not engine.requests


async def test_a_million_token_ids_are_not_too_many_to_read(http):
    body = b'{"model":"%s","prompt":[%s1]}' % (MODEL.encode(), b"1," * 1_000_000)
    error = await refused(http, COMPLETIONS, body)
    assert error["code"] == "context_length_exceeded"


@pytest.mark.parametrize("field", ["max_tokens", "min_tokens", "top_k", "priority", "stop_token_ids"])
@pytest.mark.parametrize("digits", [20, 25, 4000])
async def test_numbers_no_message_can_carry(http, engine, field, digits):
    number = b"1" * digits
    value = b"[%s]" % number if field == "stop_token_ids" else number
    for path, good in GOOD.items():
        body = json.dumps(good).encode()[:-1] + b',"%s":%s}' % (field.encode(), value)
        error = await refused(http, path, body)
        assert error["status"] == 400
        assert "out of range" in error["message"] or error["param"].startswith(field)
    assert not engine.requests

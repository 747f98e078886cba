"""Requests that wait too long or take too long, and what may wait."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import pytest

from server.app import create_app
from server.engine_client.admission import QueueLimits
from server.schemas.responses import ErrorAnswer
from tests.server.fakes import MODEL, FakeEngine, alphabet, make_services

pytestmark = pytest.mark.anyio

BODY = {"model": MODEL, "prompt": "x", "max_tokens": 200}


async def answered(engine: FakeEngine, body: dict[str, object], **settings: object) -> httpx.Response:
    services = make_services(engine, **settings)
    transport = httpx.ASGITransport(create_app(services), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.post("/v1/completions", json=body)
        scraped = (await http.get("/metrics")).text.splitlines()
    lines = [
        line
        for line in scraped
        if line.startswith(("tandem_requests_", "tandem_choices")) and "_created" not in line
    ]
    answer.extensions["counted"] = {
        line.split("{")[0] + line.split("reason=")[-1] for line in lines if not line.endswith(" 0.0")
    }
    return answer


def error_of(answer: httpx.Response) -> tuple[int, str | None]:
    error = ErrorAnswer.model_validate_json(answer.content).error
    assert error.type == "server_error"
    return answer.status_code, error.code


async def test_a_request_that_waits_too_long_is_refused(engine: FakeEngine) -> None:
    engine.held = True
    answer = await answered(engine, BODY, queue_timeout=0.02)
    assert error_of(answer) == (503, "queue_timeout")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert not engine.live and len(engine.aborted) == 1
    assert 'tandem_requests_rejected_total"queue_timeout"} 1.0' in answer.extensions["counted"]
    assert not [one for one in answer.extensions["counted"] if one.startswith("tandem_requests_finished")]


@pytest.mark.parametrize("settings", [{"queue_timeout": 0.5}, {"queue_timeout": 0.0}])
async def test_a_long_prompt_that_is_being_computed_does_not_wait(
    engine: FakeEngine, settings: dict[str, float]
) -> None:
    engine.held, engine.scheduled_at = True, time.monotonic
    asyncio.get_running_loop().call_later(0.7, setattr, engine, "held", False)
    answer = await answered(engine, BODY, **settings)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize(
    ("body", "settings", "seconds"),
    [
        ({"deadline_ms": 30}, {}, "0.03"),
        ({}, {"request_timeout": 0.04}, "0.04"),
        ({"deadline_ms": 30}, {"request_timeout": 9}, "0.03"),
        ({"deadline_ms": 9000, "n": 2}, {"request_timeout": 0.04}, "0.04"),
    ],
)
async def test_the_sooner_deadline_counts(
    engine: FakeEngine, body: dict[str, int], settings: dict[str, float], seconds: str
) -> None:
    engine.script, engine.pause = alphabet, 0.005
    answer = await answered(engine, {**BODY, **body}, **settings)
    assert error_of(answer) == (504, "request_timeout")
    assert f"within {seconds} seconds" in answer.json()["error"]["message"]
    assert not engine.live
    choices = float(body.get("n", 1))
    assert 'tandem_requests_finished_total"timeout"} 1.0' in answer.extensions["counted"]
    assert f'tandem_choices_finished_total"timeout"}} {choices}' in answer.extensions["counted"]


async def test_a_stream_ends_with_an_error_event(engine: FakeEngine) -> None:
    engine.script, engine.pause = alphabet, 0.02
    answer = await answered(engine, {**BODY, "stream": True, "deadline_ms": 800})
    *chunks, error, done = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert answer.status_code == 200 and chunks and done == "[DONE]"
    assert json.loads(error)["error"]["code"] == "request_timeout"


async def test_what_is_done_in_time_is_not_cut(engine: FakeEngine) -> None:
    answer = await answered(engine, {**BODY, "deadline_ms": 30_000}, queue_timeout=30, request_timeout=30)
    assert answer.json()["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("limits", "prompts", "allowed"),
    [
        (QueueLimits(2), [], True),
        (QueueLimits(2), [9, 9], True),
        (QueueLimits(2), [9, 9, 9], False),
        (QueueLimits(0), [1], False),
        (QueueLimits(9, 10), [4, 6], True),
        (QueueLimits(9, 10), [4, 7], False),
        (QueueLimits(9, 10), [11], True),
        (QueueLimits(9, 10), [1, 11], False),
    ],
)
async def test_what_may_wait(limits: QueueLimits, prompts: list[int], allowed: bool) -> None:
    assert limits.allow(prompts) == allowed


@pytest.mark.parametrize(("prompt", "status"), [("x" * 20, 200), ("x" * 21, 400), ([1] * 21, 400)])
async def test_a_prompt_has_a_longest_length(engine: FakeEngine, prompt: object, status: int) -> None:
    answer = await answered(engine, {**BODY, "prompt": prompt}, max_prompt_tokens=20)
    assert answer.status_code == status
    if status == 400:
        error = ErrorAnswer.model_validate_json(answer.content).error
        assert (error.code, error.param) == ("context_length_exceeded", "prompt")

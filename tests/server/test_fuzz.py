"""Random bodies: whatever comes, the answer is right or a client's error, and nothing stays behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.app import create_app
from server.schemas.chat import ROLES, ChatCompletionRequest
from server.schemas.completions import CompletionRequest
from server.schemas.responses import ChatCompletion, Completion, ErrorAnswer
from server.schemas.tokens import AbortRequest, ApplyTemplateRequest, DetokenizeRequest, TokenizeRequest
from tests.server.fakes import MODEL, FakeEngine, alphabet, make_services
from tests.server.sse import events, joined

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "text", "auto", "none", "c", MODEL, "😀שלום", "<|im_start|>"]),
    st.text(max_size=5),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=5)}), max_size=2)
plain = st.fixed_dictionaries(
    {"role": st.sampled_from(ROLES[:4]), "content": st.text(max_size=20) | parts},
    optional={"name": st.text(max_size=3)},
)
odd = st.fixed_dictionaries(
    {"role": st.sampled_from(ROLES), "content": values},
    optional={"name": values, "tool_calls": values, "tool_call_id": values},
)
messages = st.lists(plain, min_size=1, max_size=3) | st.lists(plain | odd, max_size=3)
prompts = st.one_of(
    st.text(max_size=10),
    st.lists(st.text(max_size=5), max_size=3),
    st.lists(st.integers(-1, 260), max_size=5),
    st.lists(st.lists(st.integers(0, 257), max_size=3), max_size=3),
    values,
)


right = {
    "stream": st.booleans(),
    "n": st.integers(1, 3),
    "max_tokens": st.integers(0, 30),
    "min_tokens": st.integers(0, 3),
    "stop": st.text(min_size=1, max_size=2) | st.lists(st.sampled_from("aehz"), max_size=5),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1),
    "top_k": st.integers(-1, 5),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "logit_bias": st.dictionaries(st.integers(0, 300).map(str), st.integers(-100, 100), max_size=2),
    "include_stop_str_in_output": st.booleans(),
    "skip_special_tokens": st.booleans(),
}


def bodies(schema: type, required: dict) -> st.SearchStrategy:
    """Required fields, some right ones, and now and then a field with anything in it."""
    names = st.sampled_from(
        [*(name for name in schema.model_fields if name != "deadline_ms"), "tools", "unknown"]
    )
    wild = st.just({}) | st.dictionaries(names, values, max_size=1)
    common = st.fixed_dictionaries(required, optional=right)
    return st.builds(lambda base, more: {**more, **base}, common, wild)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine(script=alphabet, tokens_per_batch=10)


@pytest.fixture(scope="module")
def client(engine: FakeEngine) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(make_services(engine)))
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def check(
    loop: asyncio.Runner, client: httpx.AsyncClient, engine: FakeEngine, path: str, body: object
) -> None:
    answer = loop.run(client.post(path, json=body))
    assert answer.status_code in (200, 400, 404)
    if answer.status_code != 200:
        ErrorAnswer.model_validate_json(answer.content)
    elif answer.headers["content-type"] == "application/json":
        (ChatCompletion if path == CHAT else Completion).model_validate_json(answer.content)
    else:
        assert all(choice["finish_reason"] for choice in joined(events(answer.text))["choices"])
    assert not engine.live


quick = settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@quick
@given(bodies(ChatCompletionRequest, {"model": st.just(MODEL), "messages": messages}))
def test_chat_bodies(loop, client, engine, body):
    check(loop, client, engine, CHAT, body)


@quick
@given(bodies(CompletionRequest, {"model": st.just(MODEL), "prompt": prompts}))
def test_completion_bodies(loop, client, engine, body):
    check(loop, client, engine, COMPLETIONS, body)


@quick
@given(st.sampled_from([CHAT, COMPLETIONS]), values)
def test_any_json(loop, client, engine, path, body):
    check(loop, client, engine, path, body)


OTHERS = {
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/apply-template": ApplyTemplateRequest,
    "/abort_request": AbortRequest,
}
other_fields = sorted({name for schema in OTHERS.values() for name in schema.model_fields})


@quick
@given(
    st.sampled_from(sorted(OTHERS)),
    st.dictionaries(
        st.sampled_from(other_fields), values | messages | st.lists(st.integers(0, 300)), max_size=3
    ),
)
def test_other_bodies(loop, client, path, body):
    answer = loop.run(client.post(path, json=body))
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code != 200:
        ErrorAnswer.model_validate_json(answer.content)


@quick
@given(
    st.sampled_from([CHAT, COMPLETIONS, *OTHERS]),
    st.binary(max_size=40) | st.text(max_size=40).map(json.dumps),
)
def test_any_bytes(loop, client, engine, path, content):
    headers = {"content-type": "application/json"}
    answer = loop.run(client.post(path, content=content, headers=headers))
    assert answer.status_code == 400
    ErrorAnswer.model_validate_json(answer.content)

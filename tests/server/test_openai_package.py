"""OpenAI's own client against the server: what it sends is understood, what it gets it understands."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from server.engine_client.protocol import EngineState
from tests.server.fakes import MODEL, FakeEngine, alphabet, says
from tests.server.live_server import LiveServer, eventually, live_server

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def shared() -> Iterator[LiveServer]:
    with live_server(FakeEngine()) as server:
        yield server


@pytest.fixture
def server(shared: LiveServer) -> LiveServer:
    shared.engine.__init__(script=says("Hello wörld 😀"), pause=0.001)
    return shared


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="any", base_url=server.url + "/v1", max_retries=0) as client:
        yield client


def test_chat(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=HI, logprobs=True, top_logprobs=2, seed=1, stop=["zzz"], user="me"
    )
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "Hello wörld 😀")
    assert (choice.finish_reason, choice.message.refusal) == ("stop", None)
    joined = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
    assert joined.decode() == choice.message.content
    assert len(choice.logprobs.content[0].top_logprobs) == 2
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer._request_id


def test_chat_stream(client):
    stream = client.chat.completions.create(
        model=MODEL, messages=HI, stream=True, n=2, stream_options={"include_usage": True}
    )
    texts, usage = {0: "", 1: ""}, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {0: "Hello wörld 😀", 1: "Hello wörld 😀"}
    assert usage.completion_tokens == 2 * 18


def test_the_stream_helper(client):
    with client.chat.completions.stream(model=MODEL, messages=HI) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_completion().choices[0].message.content == "Hello wörld 😀"
    assert "content.delta" in kinds and "content.done" in kinds


def test_cancelling_a_stream(client, server):
    engine = server.engine
    engine.script, engine.pause = alphabet, 0.005
    with client.chat.completions.create(model=MODEL, messages=HI, stream=True) as stream:
        for _, _chunk in zip(range(3), stream, strict=False):
            assert engine.live
    eventually(lambda: not engine.live)
    assert engine.aborted == [(engine.requests[0].request_id, None)]


def test_completions(client):
    answer = client.completions.create(model=MODEL, prompt=["a", "b"], logprobs=1, n=2, max_tokens=5)
    assert [choice.text for choice in answer.choices] == ["Hello"] * 4
    assert answer.choices[3].logprobs.text_offset == [0, 1, 2, 3, 4]
    chunks = list(client.completions.create(model=MODEL, prompt=[1, 2], stream=True, max_tokens=5))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello"


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "tandem"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_errors(client, server):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=[])
    assert (caught.value.code, caught.value.param) == ("empty_array", "messages")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=HI, stream=True, tools=[])
    assert caught.value.code == "unsupported_parameter"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-4", prompt="x")
    server.engine.state = EngineState.RESTARTING
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model=MODEL, messages=HI)
    assert caught.value.status_code == 503
    assert caught.value.response.headers["retry-after"] == "5"


def test_an_error_within_a_stream(client, server):
    server.engine.die_after = 2
    stream = client.chat.completions.create(model=MODEL, messages=HI, stream=True)
    with pytest.raises(openai.APIError, match="engine failed"):
        list(stream)

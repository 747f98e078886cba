"""The official Python SDK, unchanged."""

from __future__ import annotations

import openai
import pytest

from tests.e2e.conftest import MODEL
from tests.e2e.daemon import Daemon


@pytest.fixture
def client(daemon: Daemon) -> openai.OpenAI:
    return openai.OpenAI(base_url=daemon.url + "/v1", api_key="none", max_retries=0)


def question(text: str = "What is the capital of France?") -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_models(client: openai.OpenAI):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


def test_a_streamed_chat_equals_the_whole_one(client: openai.OpenAI):
    asked = {"model": MODEL, "messages": question(), "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**asked)
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content and "Paris" in text
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [one for one in reasons if one] == [whole.choices[0].finish_reason]
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


def test_a_cancelled_stream_frees_its_pages(client: openai.OpenAI, daemon: Daemon):
    stream = client.chat.completions.create(
        model=MODEL, messages=question("Count to a thousand."), max_tokens=4000, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    for _ in range(3):
        next(stream)
    assert daemon.metric("tandem_kv_pages_used") > 0
    aborted = daemon.metric("tandem_requests_finished_total", reason="abort")
    stream.close()
    daemon.wait_until_idle(seconds=3)
    assert daemon.metric("tandem_requests_finished_total", reason="abort") == aborted + 1


def test_chat_logprobs(client: openai.OpenAI):
    answer = client.chat.completions.create(
        model=MODEL, messages=question(), temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
    )
    assert answer.choices[0].logprobs is not None
    entries = answer.choices[0].logprobs.content or []
    text = b"".join(bytes(entry.bytes or []) for entry in entries).decode()
    assert text == answer.choices[0].message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == entry.top_logprobs[0].logprob <= 0


def test_completions_with_logprobs(client: openai.OpenAI):
    answer = client.completions.create(
        model=MODEL, prompt=["The sky is", "Two and two is"], max_tokens=4, temperature=0, logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.logprobs is not None and choice.logprobs.tokens is not None
        assert "".join(choice.logprobs.tokens) == choice.text
        assert len(choice.logprobs.token_logprobs or []) == 4


def test_seeded_choices_differ_from_each_other_and_repeat(client: openai.OpenAI):
    messages = question("Tell me a story.")
    asked = {"model": MODEL, "messages": messages, "n": 3, "seed": 7, "max_tokens": 12, "temperature": 1}
    first = [choice.message.content for choice in client.chat.completions.create(**asked).choices]
    again = [choice.message.content for choice in client.chat.completions.create(**asked).choices]
    assert first == again and len(set(first)) == 3


def test_a_bad_request_is_typed(client: openai.OpenAI):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=question(), temperature=5)
    assert caught.value.param == "temperature" and caught.value.code == "decimal_above_max_value"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=question("word " * 9000))
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "messages"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-9", messages=question())

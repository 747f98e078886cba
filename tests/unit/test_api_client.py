"""Reading streams and errors of any OpenAI-compatible server."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.client.api_client import EventDecoder, RemoteError, api_root, first_model, read_chunk, refusal

STREAM = (
    b": ping\n\n"
    b'data: {"a": 1}\n\n'
    b"event: x\r\nid: 3\r\ndata:no space\r\n\r\n"
    b"data: two\ndata: lines\n\n"
    b"retry: 5\n\n"
    b"data: \xf0\x9f\x98\x80\n\n"
    b"data: [DONE]\n\n"
    b"data: unfinished"
)
EVENTS = [b'{"a": 1}', b"no space", b"two\nlines", b"\xf0\x9f\x98\x80", b"[DONE]"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_events_do_not_depend_on_how_the_bytes_arrive(cuts: list[int]) -> None:
    decoder = EventDecoder()
    borders = [0, *sorted(cuts), len(STREAM)]
    events = [event for start, end in pairwise(borders) for event in decoder.feed(STREAM[start:end])]
    assert events == EVENTS


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/", "h:1"])
def test_urls_are_taken_with_and_without_v1(url: str) -> None:
    assert api_root(url) == "http://h:1"


def test_errors_carry_no_control_characters() -> None:
    assert str(refusal(400, b'{"error": {"message": "a\\u001b[2Jb"}}')) == "a[2Jb"


def test_answer_and_reasoning_text() -> None:
    chat = read_chunk(b'{"choices":[{"delta":{"role":"assistant","content":"hi"},"finish_reason":null}]}')
    assert (chat.choices[0].answer, chat.choices[0].thought) == ("hi", "")
    text = read_chunk(b'{"choices":[{"text":"hi","logprobs":null,"finish_reason":"stop"}],"usage":null}')
    assert (text.choices[0].answer, text.choices[0].finish_reason) == ("hi", "stop")
    both = read_chunk(b'{"choices":[{"delta":{"content":null,"reasoning_content":"hm","reasoning":"hm"}}]}')
    assert (both.choices[0].answer, both.choices[0].thought) == ("", "hm")


def test_usage() -> None:
    usage = read_chunk(
        b'{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}'
    ).usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (9, 2, 4)
    plain = read_chunk(b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}').usage
    assert plain is not None and plain.cached_tokens == 0


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (b'{"error":{"message":"boom","type":"server_error"}}', "^boom$"),
        (b'{"error":"boom"}', "^boom$"),
        (b'{"object":"error","error":{"code":3}}', "code"),
        (b"<html>", "no chunk"),
        (b"[]", "no chunk"),
        (b'{"choices":[{"delta":{"content":"\xff"}}]}', "no chunk"),
    ],
)
def test_error_events_raise(event: bytes, message: str) -> None:
    with pytest.raises(RemoteError, match=message):
        read_chunk(event)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"too long","code":"x"}}', "too long"),
        (b"<h1>502</h1>", "<h1>502</h1>"),
        (b'{"detail":"Not Found"}', '{"detail":"Not Found"}'),
        (b"", "no reason given"),
        (b"\xff", "\ufffd"),
    ],
)
def test_refusals_say_what_the_server_said(body: bytes, message: str) -> None:
    error = refusal(502, body)
    assert (str(error), error.status) == (message, 502)


def test_first_model() -> None:
    assert first_model(b'{"object":"list","data":[{"id":"a","object":"model"},{"id":"b"}]}') == "a"
    for body in (b'{"data":[]}', b"<html>", b"{}"):
        with pytest.raises(RemoteError):
            first_model(body)

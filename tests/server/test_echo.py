"""Prompts as parts of answers: echo with and without logprobs, prompt_logprobs, token ids."""

from __future__ import annotations

import time

import pytest

from tests.server.fakes import CONTEXT, EOS, IM_START, MODEL, alphabet, encode, says
from tests.server.sse import events, joined, whole
from tests.server.test_answers import CHAT, COMPLETIONS, HI, ask, stream

pytestmark = pytest.mark.anyio


async def test_echo_begins_every_choice_with_its_prompt(http, engine):
    engine.script = says("!")
    answer = await ask(http, COMPLETIONS, prompt=["Hé😀", "b"], n=2, echo=True)
    assert [choice["text"] for choice in answer["choices"]] == ["Hé😀!", "Hé😀!", "b!", "b!"]
    assert all(request.sampling.prompt_logprobs is None for request in engine.requests)
    assert answer["usage"]["completion_tokens"] == 8


async def test_what_lm_eval_sends(http, engine):
    engine.script = alphabet
    fields = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0, "seed": 1234}
    answer = await ask(http, COMPLETIONS, prompt=[[1, 2, 3, 4], [IM_START, 104]], **fields)
    for choice, prompt in zip(answer["choices"], ([1, 2, 3, 4], [IM_START, 104]), strict=True):
        logprobs = choice["logprobs"]
        assert all(len(column) == len(prompt) + 1 for column in logprobs.values())
        assert logprobs["token_logprobs"] == [None, *[-2.0] * len(prompt)]
        assert logprobs["top_logprobs"][0] is None
        assert all(len(likeliest) == 2 for likeliest in logprobs["top_logprobs"][1:])
    assert answer["choices"][1]["text"] == "<|im_start|>ha"
    assert answer["choices"][1]["logprobs"]["tokens"] == ["<|im_start|>", "h", "a"]
    assert answer["choices"][1]["logprobs"]["text_offset"] == [0, 12, 13]
    assert [request.sampling.prompt_logprobs for request in engine.requests] == [1, 1]


async def test_the_token_that_ends_a_choice_has_its_entry_after_an_echo(http, engine):
    """Whoever counts entries off would lose the prompt's last one otherwise."""
    engine.script = lambda request, choice: [EOS]
    answer = await ask(http, COMPLETIONS, prompt=[97, 98], echo=True, logprobs=0, max_tokens=1)
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "b", "<|im_end|>"]
    assert logprobs["text_offset"] == [0, 1, 2]
    assert answer["choices"][0]["text"] == "ab"


async def test_no_new_tokens(http, engine):
    plain = await ask(http, COMPLETIONS, prompt="abc", echo=True, max_tokens=0)
    assert plain["choices"][0]["text"] == "abc"
    assert engine.requests == []
    scored = await ask(http, COMPLETIONS, prompt="abc", echo=True, max_tokens=0, logprobs=2)
    assert scored["choices"][0]["text"] == "abc"
    assert scored["choices"][0]["finish_reason"] == "length"
    assert scored["choices"][0]["logprobs"]["token_logprobs"] == [None, -2.0, -2.0]
    assert scored["usage"]["completion_tokens"] == 0
    assert not engine.live


@pytest.mark.parametrize("tokens_per_batch", [1, 4, 50])
@pytest.mark.parametrize(
    "fields",
    [
        {"echo": True},
        {"echo": True, "logprobs": 3},
        {"echo": True, "logprobs": 0, "max_tokens": 0},
        {"echo": True, "logprobs": 1, "n": 2, "stop": ["rld"]},
        {"echo": True, "logprobs": 1, "prompt": list("é".encode()[:1])},
        {"echo": True, "logprobs": 1, "prompt": [IM_START, *b"hi", EOS]},
    ],
)
async def test_twin_rule(http, engine, tokens_per_batch, fields):
    engine.script = says("Hello wörld 😀")
    engine.tokens_per_batch = tokens_per_batch
    fields = {"prompt": ["Grüße, ", "Hello"], "max_tokens": 40, **fields}
    streamed = await stream(http, COMPLETIONS, **fields)
    answer = await ask(http, COMPLETIONS, **fields)
    assert joined(streamed) == whole(answer)
    for choice in answer["choices"]:
        if choice["logprobs"] is not None:
            assert choice["logprobs"]["text_offset"] == sorted(choice["logprobs"]["text_offset"])
    assert not engine.live


@pytest.mark.parametrize("asked", [{"echo": True, "logprobs": 1}, {"return_token_ids": True}])
async def test_an_output_without_tokens_says_nothing_of_the_prompt_yet(http, engine, asked):
    plain = await ask(http, COMPLETIONS, prompt=["ab", "c"], n=2, **asked)
    chunks = await stream(http, COMPLETIONS, prompt=["ab", "c"], n=2, **asked)
    engine.scheduled_at = time.monotonic
    scheduled = await ask(http, COMPLETIONS, prompt=["ab", "c"], n=2, **asked)
    assert scheduled["choices"] == plain["choices"]
    later = await stream(http, COMPLETIONS, prompt=["ab", "c"], n=2, **asked)
    assert [chunk["choices"] for chunk in later] == [chunk["choices"] for chunk in chunks]


async def test_a_prompt_counts_once_though_no_choice_shows_a_token(http):
    await ask(http, COMPLETIONS, prompt="abc", echo=True, max_tokens=0, logprobs=2, n=2)
    text = (await http.get("/metrics")).text
    (line,) = (line for line in text.splitlines() if line.startswith("tandem_prompt_tokens_total{"))
    assert float(line.split()[-1]) == 3


async def test_a_stop_string_is_not_looked_for_in_the_echo(http, engine):
    engine.script = says("cd")
    answer = await ask(http, COMPLETIONS, prompt="ab", echo=True, stop=["ab", "bc"])
    assert answer["choices"][0]["text"] == "abcd"


async def test_a_character_may_begin_in_the_prompt(http, engine):
    engine.script = lambda request, choice: [*"é".encode()[1:], 33, EOS]
    answer = await ask(http, COMPLETIONS, prompt=[97, *"é".encode()[:1]], echo=True, logprobs=0)
    assert answer["choices"][0]["text"] == "aé!"
    assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 1, 1, 2, 3]


async def test_special_tokens_that_the_client_wrote_are_echoed(http):
    answer = await ask(http, COMPLETIONS, prompt="<|im_start|>user", echo=True, max_tokens=2)
    assert answer["choices"][0]["text"] == "<|im_start|>userHe"


async def test_prompt_logprobs(http, engine):
    answer = await ask(http, COMPLETIONS, prompt=["ab", "c"], prompt_logprobs=2, max_tokens=2)
    first, second = (choice["prompt_logprobs"] for choice in answer["choices"])
    assert first == [
        None,
        {
            "98": {"logprob": -2.0, "rank": None, "decoded_token": "b"},
            "99": {"logprob": -0.5, "rank": 1, "decoded_token": "c"},
            "100": {"logprob": -1.5, "rank": 2, "decoded_token": "d"},
        },
    ]
    assert second == [None]
    assert answer["choices"][0]["logprobs"] is None
    chat = await ask(http, CHAT, prompt_logprobs=0)
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert list(chat["prompt_logprobs"][1]) == ["117"]


async def test_prompt_logprobs_beside_an_echo_with_fewer(http, engine):
    answer = await ask(http, COMPLETIONS, prompt="ab", prompt_logprobs=3, echo=True, logprobs=1, max_tokens=1)
    (choice,) = answer["choices"]
    assert len(choice["prompt_logprobs"][1]) == 4
    assert [entry and len(entry) for entry in choice["logprobs"]["top_logprobs"]] == [None, 2, 2]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_token_ids(http, engine, path):
    engine.script = says("a😀")
    answer = await ask(http, path, return_token_ids=True, n=2)
    prompt = encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n") if path == CHAT else [104, 105]
    ids = [*"a😀".encode(), EOS]
    assert [choice["token_ids"] for choice in answer["choices"]] == [ids, ids]
    holders = [answer] if path == CHAT else answer["choices"]
    assert all(holder["prompt_token_ids"] == prompt for holder in holders)
    chunks = await stream(http, path, return_token_ids=True, n=2)
    entries = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    for index in (0, 1):
        streamed = [e.get("token_ids", []) for e in entries if e["index"] == index]
        assert [token for piece in streamed for token in piece] == ids
    holders = [chunk if path == CHAT else entry for chunk, entry in zip(chunks, entries, strict=False)]
    given = [holder["prompt_token_ids"] for holder in holders if "prompt_token_ids" in holder]
    assert given == [prompt] * (1 if path == CHAT else 2)


async def test_token_ids_end_with_the_stop_string(http, engine):
    engine.script, engine.tokens_per_batch = alphabet, 20
    answer = await ask(http, COMPLETIONS, return_token_ids=True, stop="cd")
    assert answer["choices"][0]["token_ids"] == list(b"abcd")


async def test_what_is_refused(http, engine):
    for path, fields, param in (
        (COMPLETIONS, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (CHAT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt_logprobs": 21}, "prompt_logprobs"),
        (
            COMPLETIONS,
            {"prompt": [7] * CONTEXT, "max_tokens": 0, "echo": True, "logprobs": 0},
            "prompt",
        ),
    ):
        base = {"messages": HI} if path == CHAT else {"prompt": "hi"}
        answer = await http.post(path, json={"model": MODEL, **base, **fields})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert engine.requests == []


async def test_an_engine_fault_before_the_first_token(http, engine):
    engine.fail_after = 0
    answer = await http.post(
        COMPLETIONS, json={"model": MODEL, "prompt": "hi", "echo": True, "logprobs": 1, "stream": True}
    )
    (last,) = events(answer.text)
    assert last["error"]["code"] == "engine_error"

"""Texts to tokens and back, and what the chat template makes of a conversation."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from server.engine_client.protocol import EngineState
from server.schemas.responses import ErrorAnswer
from tests.server.fakes import CONTEXT, EOS, IM_START, MODEL, FakeEngine, encode

pytestmark = pytest.mark.anyio
HI = {"role": "user", "content": "hi<|im_end|>"}
RENDERED = "<|im_start|>user\nhi<|im_end|><|im_end|>\n"
ASSISTANT = "<|im_start|>assistant\n"


async def ask(http: httpx.AsyncClient, path: str, **body: object) -> dict[str, Any]:
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_text(http: httpx.AsyncClient) -> None:
    made = await ask(http, "/tokenize", model=MODEL, prompt="h\u00e9<|im_end|>", return_token_strs=True)
    assert made == {
        "count": 4,
        "max_model_len": CONTEXT,
        "tokens": [*"h\u00e9".encode(), EOS],
        "token_strs": ["h", "\\xc3", "\\xa9", "<|im_end|>"],
    }
    assert (await ask(http, "/detokenize", tokens=made["tokens"]))["prompt"] == "h\u00e9<|im_end|>"
    bare = await ask(http, "/detokenize", tokens=made["tokens"], skip_special_tokens=True)
    assert bare == {"prompt": "h\u00e9"}
    assert (await ask(http, "/tokenize", prompt=""))["tokens"] == []
    assert (await ask(http, "/detokenize", tokens=[]))["prompt"] == ""


async def test_a_conversation(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    made = await ask(http, "/tokenize", messages=[HI])
    assert [token for token in made["tokens"] if token >= EOS] == [IM_START, EOS, IM_START]
    await http.post("/v1/chat/completions", json={"model": MODEL, "messages": [HI]})
    assert list(engine.requests[0].prompt_token_ids) == made["tokens"], "as it is served"
    shorter = await ask(http, "/tokenize", messages=[HI], add_generation_prompt=False)
    assert shorter["count"] == made["count"] - len(encode(ASSISTANT))


async def test_what_the_template_makes(http: httpx.AsyncClient) -> None:
    assert await ask(http, "/apply-template", messages=[HI]) == {"prompt": RENDERED + ASSISTANT}
    last = {"role": "assistant", "content": "so"}
    made = await ask(http, "/apply-template", messages=[HI, last], continue_final_message=True)
    assert made["prompt"] == RENDERED + ASSISTANT + "so"
    refused = await http.post(
        "/apply-template", json={"messages": [HI], "chat_template_kwargs": {"fail": "no"}}
    )
    assert refused.json()["error"]["code"] == "chat_template_error"


@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        ("/tokenize", {}, "missing_required_parameter", "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [HI]}, "invalid_value", "prompt"),
        ("/tokenize", {"prompt": 1}, "invalid_type", "prompt"),
        ("/tokenize", {"messages": []}, "empty_array", "messages"),
        ("/tokenize", {"prompt": "x", "model": "y"}, "model_not_found", "model"),
        ("/tokenize", {"prompt": "x", "content": "y"}, "unsupported_parameter", "content"),
        ("/detokenize", {"tokens": [9999]}, "invalid_value", "tokens"),
        ("/detokenize", {"tokens": [-1]}, "integer_below_min_value", "tokens.0"),
        ("/detokenize", {"tokens": "x"}, "invalid_type", "tokens"),
        ("/detokenize", {}, "missing_required_parameter", "tokens"),
        ("/apply-template", {"prompt": "x"}, "unsupported_parameter", "prompt"),
        ("/apply-template", {"messages": "x"}, "invalid_type", "messages"),
        ("/abort_request", {}, "missing_required_parameter", "request_id"),
        ("/abort_request", {"request_id": "x", "all": True}, "unsupported_parameter", "all"),
    ],
)
async def test_refusals(
    http: httpx.AsyncClient, path: str, body: dict[str, object], code: str, param: str
) -> None:
    answer = await http.post(path, json=body)
    error = ErrorAnswer.model_validate_json(answer.content).error
    assert answer.status_code == (404 if code == "model_not_found" else 400)
    assert (error.code, error.param) == (code, param)


async def test_not_before_the_model_is_there(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.state = EngineState.STARTING
    assert (await http.post("/tokenize", json={"prompt": "x"})).status_code == 503

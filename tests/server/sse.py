"""Reading server-sent events and checking their form on the way."""

from __future__ import annotations

import json


def events(text: str) -> list[dict]:
    """The JSON of every event of a complete stream, without the closing [DONE]."""
    assert text.endswith("data: [DONE]\n\n")
    frames = text.split("\n\n")
    assert frames.pop() == ""
    data = [frame for frame in frames if not frame.startswith(":")]
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in data)
    assert data.pop() == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in data]


def joined(chunks: list[dict]) -> dict:
    """The chunks of a stream put together to what the same request gets without streaming."""
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    choices: dict[int, dict] = {}
    usage = None
    for chunk in chunks:
        if not chunk["choices"]:
            assert usage is None and chunk is chunks[-1]
            usage = chunk["usage"]
            continue
        (entry,) = chunk["choices"]
        choice = choices.setdefault(entry["index"], {"text": "", "logprobs": None, "finish_reason": None})
        assert choice["finish_reason"] is None, "nothing follows a finish reason"
        if "delta" in entry:
            if "role" in entry["delta"]:
                assert entry["delta"] == {"role": "assistant", "content": ""}
                assert "role" not in choice
                choice["role"] = "assistant"
            assert choice["role"] == "assistant"
        text = entry["delta"].get("content", "") if "delta" in entry else entry["text"]
        assert not (text and entry["finish_reason"])
        choice["text"] += text
        choice["logprobs"] = _more(choice["logprobs"], entry["logprobs"])
        choice["finish_reason"] = entry["finish_reason"]
    return {"choices": [choices[index] for index in sorted(choices)], "usage": usage}


def whole(response: dict) -> dict:
    """A response without streaming in the same shape."""
    choices = []
    for index, entry in enumerate(response["choices"]):
        assert entry["index"] == index
        choice = {"logprobs": entry["logprobs"], "finish_reason": entry["finish_reason"]}
        if "message" in entry:
            choice |= {"role": entry["message"]["role"], "text": entry["message"]["content"]}
        else:
            choice["text"] = entry["text"]
        choices.append(choice)
    return {"choices": choices, "usage": response["usage"]}


def _more(before: dict | None, entry: dict | None) -> dict | None:
    if before is None or entry is None:
        return before or entry
    return {key: value + entry[key] if isinstance(value, list) else value for key, value in before.items()}

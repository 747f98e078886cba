"""A small OpenAI-compatible server with scripted behaviour, for testing clients over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn

TEMPLATE_TOKENS = 7
"""Prompt tokens that the chat template adds; each word of a prompt is one token more."""


@dataclass
class Script:
    """How the server behaves, and what it saw."""

    models: list[str] = field(default_factory=lambda: ["fake-model"])
    refused_fields: frozenset[str] = frozenset()
    tokens_per_frame: int = 1
    answer_tokens: int | None = None
    """Instead of max_tokens."""
    finish_reason: str = "length"
    cached_tokens: int = 0
    status: Callable[[int], int] = lambda number: 200
    """Status of the n-th request to an endpoint, from 0."""
    break_after: int | None = None
    """Frames after which the stream ends without a finish reason."""
    error_after: int | None = None
    """Frames after which an error frame comes."""
    on_frame: Callable[[int], None] = lambda number: None
    wait_for_disconnect_after: int | None = None
    """Frames after which the server waits until the client goes away."""
    words: Callable[[int], str] = lambda number: f"w{number} "
    bodies: list[dict[str, Any]] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    disconnected: threading.Event = field(default_factory=threading.Event)

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/v1/models":
            await _json(send, 200, {"object": "list", "data": [{"id": m} for m in self.models]})
            return
        if scope["path"] == "/ready":
            await _json(send, 200, {"status": "ready"})
            return
        raw, more = b"", True
        while more:
            message = await receive()
            raw, more = raw + message.get("body", b""), message.get("more_body", False)
        body = json.loads(raw)
        number = len(self.bodies)
        self.bodies.append(body)
        self.authorizations.append(dict(scope["headers"]).get(b"authorization", b"").decode() or None)
        if unknown := self.refused_fields & body.keys():
            await _error(send, 400, f"unknown field {sorted(unknown)[0]}")
        elif (status := self.status(number)) != 200:
            await _error(send, status, f"scripted {status}")
        else:
            await self._stream(scope["path"], body, receive, send)

    async def _stream(self, path, body, receive, send) -> None:
        chat = path.endswith("chat/completions")
        tokens = body["max_tokens"] if self.answer_tokens is None else self.answer_tokens
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"text/event-stream")],
            }
        )

        async def event(payload: dict[str, Any] | str) -> None:
            text = payload if isinstance(payload, str) else json.dumps(payload)
            await send(
                {"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": True}
            )

        def choice(text: str, finish: str | None) -> dict[str, Any]:
            content = {"delta": {"content": text} if text else {}} if chat else {"text": text}
            return {"choices": [{"index": 0, "finish_reason": finish, **content}], "usage": None}

        if chat:
            await event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        await send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})
        starts = range(0, tokens, self.tokens_per_frame)
        for frame, start in enumerate(starts):
            await event(
                choice(
                    "".join(map(self.words, range(start, min(start + self.tokens_per_frame, tokens)))), None
                )
            )
            self.on_frame(frame)
            await asyncio.sleep(0.001)
            if frame + 1 == self.wait_for_disconnect_after:
                while (await receive())["type"] != "http.disconnect":
                    pass
                self.disconnected.set()
                return
            if frame + 1 == self.error_after:
                await event({"error": {"message": "scripted failure", "type": "server_error"}})
                await event("[DONE]")
                break
            if frame + 1 == self.break_after:
                break
        else:
            await event(choice("", self.finish_reason))
            if body.get("stream_options", {}).get("include_usage"):
                await event({"choices": [], "usage": self._usage(chat, body, tokens)})
            await event("[DONE]")
        await send({"type": "http.response.body", "body": b""})

    def _usage(self, chat: bool, body: dict[str, Any], tokens: int) -> dict[str, Any]:
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        return {
            "prompt_tokens": len(prompt.split()) + TEMPLATE_TOKENS,
            "completion_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


async def _json(send, status: int, payload: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(payload).encode()})


async def _error(send, status: int, message: str) -> None:
    await _json(send, status, {"error": {"message": message, "type": "x", "param": None, "code": None}})


@contextlib.contextmanager
def serving(script: Script) -> Iterator[str]:
    """Serve on a free port; gives the URL."""
    server = uvicorn.Server(uvicorn.Config(script, log_level="error", lifespan="off"))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()


def unused_url() -> str:
    """Where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

"""One streamed request: what is sent, and the record of what came back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import httpx
import msgspec

from server.client.api_client import DONE, EventDecoder, RemoteError, Usage, read_chunk, refusal
from server.client.bench.records import RequestRecord, frames_of

NOT_CONNECTED = "not connected"
"""Error of a request for which no connection could be made."""

Endpoint = Literal["chat", "completions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What the server understands beyond OpenAI's oldest requests."""

    ignore_eos: bool
    """Answers of an exact length (``ignore_eos``, ``min_tokens``): Tandem, vLLM, SGLang."""
    include_usage: bool
    """``stream_options``, for token counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """What all requests of a benchmark have in common."""

    model: str
    endpoint: Endpoint
    temperature: float
    dialect: Dialect

    @property
    def path(self) -> str:
        """Below the server's root."""
        return "/v1/chat/completions" if self.endpoint == "chat" else "/v1/completions"

    def body(self, prompt: str, output_tokens: int) -> bytes:
        """JSON that asks for ``output_tokens`` tokens, exactly or at most, depending on the dialect."""
        fields: dict[str, Any] = {
            "model": self.model,
            "max_tokens": output_tokens,
            "temperature": self.temperature,
            "stream": True,
        }
        if self.endpoint == "chat":
            fields["messages"] = [{"role": "user", "content": prompt}]
        else:
            fields["prompt"] = prompt
        if self.dialect.include_usage:
            fields["stream_options"] = {"include_usage": True}
        if self.dialect.ignore_eos:
            fields |= {"ignore_eos": True, "min_tokens": output_tokens}
        return msgspec.json.encode(fields)


class _Answer:
    """Collects the events of one stream."""

    def __init__(self) -> None:
        self.arrivals: list[tuple[float, int]] = []
        self.usage: Usage | None = None
        self.finished_at: float | None = None
        self.done = False

    def add(self, event: bytes, now: float) -> None:
        if event == DONE:
            self.done = True
            return
        chunk = read_chunk(event)
        self.usage = chunk.usage or self.usage
        for choice in chunk.choices:
            if text := choice.answer or choice.thought:
                self.arrivals.append((now, len(text)))
            if choice.finish_reason is not None:
                self.finished_at = now


async def send(http: httpx.AsyncClient, path: str, body: bytes, clock: Callable[[], float]) -> RequestRecord:
    """Send one request and read its stream to the end. Failures become records too, never exceptions."""
    answer = _Answer()
    started = clock()
    error, detail = "", ""
    try:
        async with http.stream(
            "POST", path, content=body, headers={"Content-Type": "application/json"}
        ) as response:
            if response.status_code != httpx.codes.OK:
                raise refusal(response.status_code, await response.aread())
            decoder = EventDecoder()
            async for received in response.aiter_bytes():
                now = clock()
                for event in decoder.feed(received):
                    answer.add(event, now)
    except RemoteError as failure:
        error = "error in stream" if failure.status == httpx.codes.OK else str(failure.status)
        detail = str(failure)
    except httpx.HTTPError as failure:
        error, detail = _transport_error(failure), repr(failure)
    if not error and answer.finished_at is None:
        error, detail = "stream cut off", "it ended without a finish reason"
    return _record(answer, started, clock(), error, detail)


def _record(answer: _Answer, started: float, finished: float, error: str, detail: str) -> RequestRecord:
    if error:
        return RequestRecord(started=started, finished=finished, error=error, detail=detail)
    usage = answer.usage
    tokens = usage.completion_tokens if usage else len(answer.arrivals)
    last_token = answer.finished_at or finished
    arrivals = answer.arrivals or [(last_token, 1)]  # tokens may have no text at all
    return RequestRecord(
        started=started,
        finished=finished,
        frames=frames_of(arrivals, tokens),
        last_token=last_token,
        prompt_tokens=usage.prompt_tokens if usage else None,
        cached_tokens=usage.cached_tokens if usage else 0,
        output_tokens=tokens,
    )


def _transport_error(failure: httpx.HTTPError) -> str:
    if isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout):
        return NOT_CONNECTED
    if isinstance(failure, httpx.TimeoutException):
        return "timeout"
    return "connection lost"

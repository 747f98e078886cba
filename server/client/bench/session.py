"""One benchmark from beginning to end: learn what the server speaks, size the prompts, run the rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from server.client.api_client import RemoteError, first_model, no_server, refusal
from server.client.bench.client import NOT_CONNECTED, Dialect, RequestShape, send
from server.client.bench.load import closed_loop, open_loop
from server.client.bench.metrics import Summary, summarise
from server.client.bench.options import Options
from server.client.bench.prompts import random_text, words_for
from server.client.bench.records import RequestRecord
from server.client.bench.report import Report

_DIALECTS = (
    Dialect(ignore_eos=True, include_usage=True),
    Dialect(ignore_eos=False, include_usage=True),
    Dialect(ignore_eos=False, include_usage=False),
)
_NOT_UNDERSTOOD = ("400", "422")

Tell = Callable[[str], None]
"""Shows progress."""


@dataclass(frozen=True, slots=True)
class Session:
    """A server, and what is needed to send it requests."""

    http: httpx.AsyncClient
    options: Options
    rng: random.Random
    clock: Callable[[], float]

    async def measure(self, seed: int, tell: Tell) -> Report:
        """Run everything.

        Args:
            seed: what ``rng`` was made from, for the report.
            tell: called before each row.

        Raises:
            RemoteError: the server can't be used at all. Failures of single requests are in the report.
        """
        options = self.options
        shape = await self._spoken(options.model or await self._first_model())
        words = await words_for(options.prompt_tokens, lambda words: self._count_tokens(shape, words))
        rows = [
            summarise(f"{n} streams" if n > 1 else "1 stream", await self._closed(shape, words, n, tell), n)
            for n in (() if options.rate else options.concurrency)
        ] + [
            summarise(f"{rate:g} req/s", await self._open(shape, words, rate, tell), None)
            for rate in options.rate
        ]
        return Report(
            url=str(self.http.base_url).rstrip("/"),
            model=shape.model,
            endpoint=options.endpoint,
            prompt_tokens=options.prompt_tokens,
            output_tokens=options.output_tokens,
            temperature=options.temperature,
            seed=seed,
            notes=tuple(_notes(options, shape.dialect, rows)),
            rows=tuple(rows),
        )

    async def _first_model(self) -> str:
        try:
            response = await self.http.get("/v1/models")
        except httpx.HTTPError as failure:
            raise RemoteError(no_server(str(self.http.base_url))) from failure
        if response.status_code != httpx.codes.OK:
            raise refusal(response.status_code, response.content)
        return first_model(response.content)

    async def _spoken(self, model: str) -> RequestShape:
        """The richest dialect the server accepts, found by asking; it warms the server up, too."""
        for dialect in _DIALECTS if self.options.ignore_eos else _DIALECTS[1:]:
            shape = RequestShape(
                model=model,
                endpoint=self.options.endpoint,
                temperature=self.options.temperature,
                dialect=dialect,
            )
            record = await self._send(shape, words=1, output_tokens=2)
            if record.error not in _NOT_UNDERSTOOD:
                break
        if record.error == NOT_CONNECTED:
            raise RemoteError(no_server(str(self.http.base_url)))
        if record.error:
            raise RemoteError(f"the server fails the first request: {record.error}: {record.detail}")
        return shape

    async def _count_tokens(self, shape: RequestShape, words: int) -> int | None:
        record = await self._send(shape, words, output_tokens=1)
        if record.error:
            raise RemoteError(f"the server fails a prompt of {words} words: {record.error}: {record.detail}")
        return record.prompt_tokens

    async def _send(self, shape: RequestShape, words: int, output_tokens: int) -> RequestRecord:
        body = shape.body(random_text(words, self.rng), output_tokens)
        return await send(self.http, shape.path, body, self.clock)

    async def _closed(self, shape: RequestShape, words: int, streams: int, tell: Tell) -> list[RequestRecord]:
        requests = self.options.requests_for(streams)
        tell(f"{streams} at once: {requests} requests ...")
        return await closed_loop(
            lambda: self._send(shape, words, self.options.output_tokens), streams, requests
        )

    async def _open(self, shape: RequestShape, words: int, rate: float, tell: Tell) -> list[RequestRecord]:
        requests = self.options.requests_of_open_loop
        tell(f"{rate:g} a second: {requests} requests ...")
        return await open_loop(
            lambda: self._send(shape, words, self.options.output_tokens), rate, requests, self.rng
        )


def _notes(options: Options, dialect: Dialect, rows: Sequence[Summary]) -> list[str]:
    """What a reader of the table must know to read it rightly."""
    notes = []
    if options.ignore_eos and not dialect.ignore_eos:
        notes.append("the server refuses ignore_eos and min_tokens: answers end where the model ends them")
    if not dialect.include_usage:
        notes.append("the server refuses stream_options: each frame is counted as one token")
    for row in rows:
        if row.output_tokens_mean is not None and row.output_tokens_mean < options.output_tokens:
            notes.append(
                f"{row.label}: answers have {row.output_tokens_mean:.1f} tokens on average, "
                f"{options.output_tokens} were asked for"
            )
    return notes

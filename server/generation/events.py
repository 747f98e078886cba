"""The answer as server-sent events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from server.generation.answer import Answer
from server.generation.formats import Format, usage_json
from server.generation.running import ChoiceDelta, Generation
from server.http.deadline import Deadline
from server.http.errors import ApiError
from server.http.writer import ResponseWriter

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
SSE_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
    }
)


class EventStream(Answer):
    """Chat completions and completions.

    Args:
        format: the endpoint's.
        include_usage: whether a last chunk carries the usage.
    """

    def __init__(self, format: Format, *, include_usage: bool) -> None:
        self._format = format
        self._include_usage = include_usage
        # Every chunk differs in its one choice only; the rest is encoded once.
        envelope = msgspec.json.encode(format.envelope(chunk=True))
        self._head = b"data: " + envelope[:-1] + b',"choices":['
        self._end_of_chunk = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def frames(self, deltas: list[ChoiceDelta]) -> bytes:
        """One frame for each chunk; none for deltas with nothing to see."""
        head, encode, end = self._head, msgspec.json.encode, self._end_of_chunk
        return b"".join(
            [
                head + encode(entry) + (end if delta.prompt is None else self._end_about_prompt(delta))
                for delta in deltas
                for entry in self._format.chunk_choices(delta)
            ]
        )

    def _end_about_prompt(self, delta: ChoiceDelta) -> bytes:
        more = msgspec.json.encode(self._format.beside_choices(delta))[1:-1]
        return b"]," + more + self._end_of_chunk[1:] if more else self._end_of_chunk

    def ending(self, generation: Generation) -> bytes:
        """What follows the last choice's end."""
        if not self._include_usage:
            return DONE
        usage = msgspec.json.encode(usage_json(generation.usage))
        return self._head + b'],"usage":' + usage + b"}\n\n" + DONE

    def whole(self, deltas: Sequence[Sequence[ChoiceDelta]], generation: Generation) -> dict[str, Any]:
        """A completion object."""
        first = deltas[0][0]
        return {
            **self._format.envelope(chunk=False),
            "choices": [self._format.choice(index, parts) for index, parts in enumerate(deltas)],
            "usage": usage_json(generation.usage),
            **(self._format.beside_choices(first) if first.prompt is not None else {}),
        }

    def broken_off(self, error: ApiError) -> bytes:
        """The error object as an event."""
        return b"data: " + error.body() + b"\n\n" + DONE


async def send_events(
    generation: Generation, events: Answer, writer: ResponseWriter, keepalive: float
) -> None:
    """Write a generation's events as they come, and a comment after ``keepalive`` seconds of silence.

    Raises:
        ApiError: the generation failed.
        ClientStalled: the client did not read in time.
    """
    deadline = Deadline()
    try:
        while not generation.finished:
            try:
                with deadline.at(writer.written_at + keepalive):
                    deltas = await generation.next_deltas()
            except TimeoutError:
                await writer.write(PING)
                continue
            data = events.frames(deltas)
            if generation.finished:
                await writer.write(data + events.ending(generation), last=True)
            elif data:
                await writer.write(data)
    finally:
        deadline.close()

"""From the bytes of a request body to a JSON object, within limits and in time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.types import Receive

from server.http.errors import ApiError, bad_request, body_too_large, body_too_slow, shorten, too_many_values

INLINE_BYTES = 64 * 1024
"""A longer body is decoded and checked in a worker thread."""
MAX_DEPTH = 64
MAX_DECODING_COST = 1_200_000
"""In the units of ``decoding_cost``: about 40 ms, in which the decoder keeps the interpreter from all other
threads, the event loop's too. More than a million token ids, or text of any length, stay below it."""
DISCARDED_BODIES = 8
"""How many limits' worth of a too long body is read and thrown away, so that the client gets to see the
answer: closing a connection with unread data resets it."""
DISCARD_SECONDS = 5.0
PIECE_SECONDS = 20.0
"""The longest a client may let wait for the next piece of its body ..."""
BODY_SECONDS = 300.0
"""... and for the whole of it."""

LONE_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")
"""The escape of the first half of a surrogate pair, without the second half."""


class ClientDisconnected(Exception):
    """The client left before its request was complete; there is nobody to answer."""


async def read_body(receive: Receive, headers: Mapping[str, str], limit: int) -> bytes:
    """The whole body, at most ``limit`` bytes, whether or not its length was declared.

    Raises:
        ApiError: 413 for a longer one, 408 for one that does not come.
        ClientDisconnected: the client left.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _read_body(receive, headers, limit)
    except TimeoutError:
        raise body_too_slow() from None


async def _read_body(receive: Receive, headers: Mapping[str, str], limit: int) -> bytes:
    declared = headers.get("content-length", "0")
    too_long = declared.isascii() and declared.isdigit() and int(declared[:20]) > limit
    if too_long and headers.get("expect", "").lower() == "100-continue":
        raise body_too_large(limit)
    chunks: list[bytes] = []
    size, more = 0, True
    while more and not too_long:
        async with asyncio.timeout(PIECE_SECONDS):
            chunk, more = await _next_chunk(receive)
        size += len(chunk)
        chunks.append(chunk)
        too_long = size > limit
    if too_long:
        chunks.clear()
        if more:
            await _discard(receive, DISCARDED_BODIES * limit)
        raise body_too_large(limit)
    return b"".join(chunks)


def check_content_type(headers: Mapping[str, str]) -> None:
    """Refuse what isn't JSON in UTF-8. A missing content type is taken for JSON.

    Raises:
        ApiError: 415 for another media type, 400 for another character set.
    """
    media_type, _, parameters = headers.get("content-type", "application/json").partition(";")
    media_type = media_type.strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        message = f"The content type must be application/json, but is {shorten(media_type)}."
        raise ApiError(415, message, code="invalid_json")
    for parameter in parameters.lower().split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip().strip('"') not in ("utf-8", "utf8", "us-ascii"):
            raise bad_request("The body must be encoded in UTF-8.", "invalid_json")


def decode_object(body: bytes) -> dict[str, Any]:
    """A JSON object: strict JSON, UTF-8, no lone surrogates, numbers finite, at most 64 levels deep.

    Raises:
        ApiError: 400, or 413 for millions of values.
    """
    if decoding_cost(body) > MAX_DECODING_COST:
        raise too_many_values()
    if not body.strip():
        raise bad_request("The request body is empty; a JSON object is expected.", "invalid_json")
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, ValueError) as error:
        raise bad_request(
            f"The request body is not valid JSON: {_reason(error, body)}.", "invalid_json"
        ) from None
    if not isinstance(value, dict):
        raise bad_request("The request body must be a JSON object.", "invalid_json")
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and depth(value) > MAX_DEPTH:
        raise _too_deep()
    return value


def decoding_cost(body: bytes) -> int:
    """At most how long decoding takes, in times of a number: a container costs ten, a key eight.

    Counted by the characters that separate values, wherever they stand, so text is overcounted.
    """
    containers = body.count(b"[") + body.count(b"{")
    return body.count(b",") + 10 * containers + 8 * body.count(b":") + 2 * body.count(b'"')


def depth(value: object) -> int:
    """Levels of arrays and objects in a decoded JSON value."""
    levels, containers = 0, [value] if isinstance(value, dict | list) else []
    while containers:
        levels += 1
        containers = [
            child
            for container in containers
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, dict | list)
        ]
    return levels


async def _next_chunk(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnected
    return message.get("body", b""), message.get("more_body", False)


async def _discard(receive: Receive, limit: int) -> None:
    try:
        async with asyncio.timeout(DISCARD_SECONDS):
            size, more = 0, True
            while more and size <= limit:
                chunk, more = await _next_chunk(receive)
                size += len(chunk)
    except TimeoutError:
        return


def _too_deep() -> ApiError:
    return bad_request(f"The request body is nested more than {MAX_DEPTH} levels deep.", "invalid_json")


def _reason(error: Exception, body: bytes) -> str:
    """The decoder's message without its own introduction, on one line, e.g. ``trailing comma (byte 3)``."""
    text = str(error)
    if LONE_SURROGATE.search(body):
        return "a string holds a lone surrogate"
    text = text.removeprefix("JSON is malformed: ").partition("\n")[0].removesuffix(" - at `$[...]`")
    return text[:1].lower() + text[1:].rstrip(".")

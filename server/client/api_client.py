"""What Tandem's own clients (``tandem chat``, ``tandem bench``) know of the OpenAI HTTP interface.

They talk to any server that speaks it, so reading is lenient: unknown keys are skipped, missing
ones have defaults. Nothing here does input or output.
"""

from __future__ import annotations

import unicodedata
from typing import Any

import msgspec

DONE = b"[DONE]"
"""The last event of a stream."""


class RemoteError(Exception):
    """The server refused a request, broke off a stream, or does not speak the OpenAI interface.

    Attributes:
        status: HTTP status, or 200 if the error came inside a stream.
    """

    def __init__(self, message: str, status: int = 200) -> None:
        super().__init__(harmless(message))
        self.status = status


class Delta(msgspec.Struct, frozen=True):
    """What a chat chunk adds to a message. Servers name the reasoning text in two ways."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True):
    """One choice of a chunk: ``delta`` from chat, ``text`` from completions."""

    delta: Delta = Delta()
    text: str | None = None
    finish_reason: str | None = None

    @property
    def answer(self) -> str:
        """New text of the answer proper."""
        return self.delta.content or self.text or ""

    @property
    def thought(self) -> str:
        """New reasoning text."""
        return self.delta.reasoning_content or self.delta.reasoning or ""


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Part of ``Usage``."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a whole request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens the server did not have to compute."""
        details = self.prompt_tokens_details
        return details.cached_tokens or 0 if details else 0


class Chunk(msgspec.Struct, frozen=True):
    """One event of a chat or completions stream."""

    choices: tuple[ChunkChoice, ...] = ()
    usage: Usage | None = None
    error: Any = None


class _Model(msgspec.Struct, frozen=True):
    id: str


class _ModelList(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...]


class EventDecoder:
    """Cuts a byte stream into the payloads of server-sent events (WHATWG HTML, section 9.2).

    Comments and all fields but ``data`` are skipped; lines end in LF or CRLF.
    """

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        """The events that ``received`` completes, in order."""
        *lines, self._tail = (self._tail + received).split(b"\n")
        events = []
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        return events


def harmless(text: str) -> str:
    """Without control characters, by which a server or a model could take over the terminal."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) != "Cc")


def api_root(url: str) -> str:
    """The URL under which ``/v1/...`` lies; users give it with and without the ``/v1``."""
    root = url if "://" in url else f"http://{url}"
    return root.rstrip("/").removesuffix("/v1")


def auth_headers(api_key: str | None) -> dict[str, str]:
    """Headers that carry the key, if there is one."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def read_chunk(event: bytes) -> Chunk:
    """One event of a stream, other than ``DONE``.

    Raises:
        RemoteError: it is not a chunk, or it reports an error.
    """
    try:
        chunk = msgspec.json.decode(event, type=Chunk)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteError(f"the stream has an event that is no chunk ({error})") from error
    if chunk.error is not None:
        raise RemoteError(_message(chunk.error))
    return chunk


def refusal(status: int, body: bytes) -> RemoteError:
    """The error that a response other than 200 stands for."""
    try:
        message = _message(msgspec.json.decode(body)["error"])
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError):
        message = body[:200].decode(errors="replace").strip() or "no reason given"
    return RemoteError(message, status)


def first_model(body: bytes) -> str:
    """Id of the first model in a ``/v1/models`` response.

    Raises:
        RemoteError: there is none.
    """
    try:
        models = msgspec.json.decode(body, type=_ModelList).data
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RemoteError("/v1/models does not answer as the OpenAI interface does") from error
    if not models:
        raise RemoteError("the server lists no model; name one with --model")
    return models[0].id


def no_server(root: str) -> str:
    """What to tell a user when nothing answers."""
    return f"no server answers at {root.rstrip('/')}; start one with `tandem serve` or name another by --url"


def _message(error: object) -> str:
    """What the value of an ``error`` key says."""
    return str(error["message"]) if isinstance(error, dict) and "message" in error else str(error)

"""``tandem chat``: talk to a running server from a terminal or a pipe."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from server.client.api_client import (
    DONE,
    ChunkChoice,
    EventDecoder,
    RemoteError,
    auth_headers,
    first_model,
    harmless,
    no_server,
    read_chunk,
    refusal,
)
from server.client.arguments import api_key, server_root, temperature

_INTERRUPTED = 130
_HELP = "/reset starts over, /exit (or Ctrl-D) leaves, Ctrl-C stops an answer"
_DIM, _PLAIN = "\033[2m", "\033[0m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A server, and what every request to it says."""

    url: str
    headers: Mapping[str, str]
    model: str
    temperature: float | None
    max_tokens: int | None

    def answer(self, messages: Sequence[dict[str, str]]) -> Generator[ChunkChoice]:
        """Stream the answer to a conversation.

        Raises:
            RemoteError: the server refuses, breaks off or can't be reached.
        """
        body: dict[str, Any] = {"model": self.model, "messages": messages, "stream": True}
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        try:
            yield from self._events(msgspec.json.encode(body))
        except httpx.ConnectError as failure:
            raise RemoteError(no_server(self.url)) from failure
        except httpx.HTTPError as failure:
            raise RemoteError(f"the connection was lost: {failure}") from failure

    def _events(self, body: bytes) -> Generator[ChunkChoice]:
        headers = {"Content-Type": "application/json"}
        # A client for each answer: closing it ends the connection, wherever Ctrl-C struck.
        with (
            _client(self.url, self.headers) as http,
            http.stream("POST", "/v1/chat/completions", content=body, headers=headers) as response,
        ):
            if response.status_code != httpx.codes.OK:
                raise refusal(response.status_code, response.read())
            decoder = EventDecoder()
            for received in response.iter_bytes():
                for event in decoder.feed(received):
                    if event == DONE:
                        return
                    yield from read_chunk(event).choices
        raise RemoteError("the server broke off the answer")


@dataclass(slots=True)
class Conversation:
    """The messages so far."""

    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def add(self, role: str, content: str) -> None:
        """Append a message."""
        self.messages.append({"role": role, "content": content})


@dataclass(frozen=True, slots=True)
class Screen:
    """Where answers go."""

    write: Callable[[str], object]
    terminal: bool
    """Whether a person reads it: then reasoning is shown dimmed and control characters are dropped."""

    def show(self, choices: Iterable[ChunkChoice], into: list[str]) -> str | None:
        """Print an answer as it comes.

        Args:
            choices: the pieces.
            into: gets the answer's text, without reasoning; also when interrupted.

        Returns:
            The finish reason.
        """
        reason = None
        for choice in choices:
            if choice.thought and self.terminal:
                self.write(_DIM + harmless(choice.thought) + _PLAIN)
            if choice.answer:
                into.append(choice.answer)
                self.write(harmless(choice.answer) if self.terminal else choice.answer)
            reason = choice.finish_reason or reason
        return reason


def run(argv: Sequence[str]) -> int:
    """Answer one message, or hold a conversation if there is none to answer.

    Returns:
        0, 1 if the server can't be reached or refuses, 2 for wrong arguments, 130 if interrupted.
    """
    try:
        options = _parser().parse_args(argv)
        message = _message(options.message)
    except SystemExit as stop:
        return int(stop.code or 0)
    screen = Screen(_write, sys.stdout.isatty())
    try:
        url, headers = options.url, auth_headers(options.api_key)
        connection = Connection(
            url=url,
            headers=headers,
            model=_model(url, headers, options.model),
            temperature=options.temperature,
            max_tokens=options.max_tokens,
        )
        conversation = Conversation(options.system)
        if message is None:
            _converse(connection, conversation, screen)
        else:
            _reply(connection, conversation, screen, message)
    except RemoteError as error:
        print(f"tandem chat: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def _converse(connection: Connection, conversation: Conversation, screen: Screen) -> None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() a history and line editing
    print(f"{connection.model} at {connection.url}. {_HELP}.")
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        if line == "/exit":
            return
        if line == "/reset":
            conversation.reset()
        elif line.startswith("/"):
            print(_HELP)
        elif line:
            _turn(connection, conversation, screen, line)


def _turn(connection: Connection, conversation: Conversation, screen: Screen, message: str) -> None:
    """One message of a conversation; whatever goes wrong, the conversation goes on."""
    try:
        _reply(connection, conversation, screen, message)
    except KeyboardInterrupt:
        print("\n[stopped]")
    except RemoteError as error:
        print(f"\n[{error}]", file=sys.stderr)


def _reply(connection: Connection, conversation: Conversation, screen: Screen, message: str) -> None:
    """Show the answer and add both messages to the conversation, a stopped answer as far as it came.

    A message that got no answer is forgotten, so that it can be sent again.
    """
    conversation.add("user", message)
    answer: list[str] = []
    try:
        with contextlib.closing(connection.answer(conversation.messages)) as choices:
            reason = screen.show(choices, answer)
    finally:
        if answer:
            conversation.add("assistant", "".join(answer))
        else:
            conversation.messages.pop()
    screen.write("\n")
    if reason == "length":
        print("[cut off: the answer reached the token limit]", file=sys.stderr)


def _client(url: str, headers: Mapping[str, str]) -> httpx.Client:
    timeout = httpx.Timeout(None, connect=10.0)  # an answer may queue for long
    return httpx.Client(base_url=url, headers=headers, timeout=timeout)


def _model(url: str, headers: Mapping[str, str], wanted: str | None) -> str:
    """The wanted or the first model; asking for the list shows early whether a server is there."""
    try:
        with _client(url, headers) as http:
            response = http.get("/v1/models", timeout=10.0)
    except httpx.HTTPError as failure:
        raise RemoteError(no_server(url)) from failure
    if wanted:
        return wanted
    if response.status_code != httpx.codes.OK:
        raise refusal(response.status_code, response.content)
    return first_model(response.content)


def _message(argument: str | None) -> str | None:
    """The message to answer: the argument, else what is piped in; None at a terminal."""
    if argument is None and not sys.stdin.isatty():
        argument = sys.stdin.buffer.read().decode(errors="replace").rstrip("\n")
    if argument is not None and not argument.strip():
        print("tandem chat: the message is empty", file=sys.stderr)
        raise SystemExit(2)
    return argument


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tandem chat",
        description="Talk to a running server: one MESSAGE, one from a pipe, or else a conversation.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("message", metavar="MESSAGE", nargs="?", help="answer this and leave")
    add(
        "--url",
        type=server_root,
        default="http://127.0.0.1:8000",
        help="with or without /v1 (default: %(default)s)",
    )
    add("--model", help="default: the first one in /v1/models")
    add("--system", help="system message")
    add("--temperature", type=temperature, help="default: the server's")
    add("--max-tokens", type=int, help="longest answer in tokens; default: the server's")
    add("--api-key", type=api_key, help="sent as a bearer token")
    return parser

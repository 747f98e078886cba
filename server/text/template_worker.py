"""The process in which chat templates are compiled and rendered: ``python -m server.text.template_worker``.

A template is a program that came with a model, and nothing in Jinja bounds what it does with a request.
So it runs where it can be stopped: with a limit on memory, one on CPU time, and a parent that ends it if
these fail.

Frames on standard input and output are a 4-byte length and that much JSON: first what to compile, then
conversations.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import sys
from typing import IO, Any, NoReturn

from engine.model_error import ModelError
from server.text.chat_template import ChatTemplate, ChatTemplateError
from server.text.plain_text import PlainText

LENGTH_BYTES = 4
MEMORY_BYTES = 1 << 30
OUTPUT_CHARACTERS = 16 << 20
"""Of a prompt, beyond four times what was sent."""
LOADING_SECONDS = 10.0
"""CPU time to compile the templates."""


class OutOfTime(Exception):
    """Rendering took more CPU time than it may."""


def main() -> int:
    """Answer until standard input ends."""
    _limit_memory()
    for number in (signal.SIGINT, signal.SIGTERM):
        # They are for the server, which may still want prompts while it drains; input ends with it.
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, _out_of_time)
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    load = _receive(requests)
    if load is None:
        return 0
    try:
        with _cpu_time(LOADING_SECONDS):
            template = _load(load)
    except (ModelError, OutOfTime, MemoryError) as error:
        _send(answers, {"error": str(error) or "the chat template can't be compiled"})
        return 1
    _send(answers, {"text": ""})
    while (request := _receive(requests)) is not None:
        _send(answers, _render(template, request, load["seconds"]))
    return 0


def _load(load: dict[str, Any]) -> ChatTemplate:
    plain = PlainText(load["control_tokens"], load["mark"])
    return ChatTemplate(
        load["sources"],
        special_tokens=load["special_tokens"],
        where=load["where"],
        protect=plain.protect,
    )


def _render(template: ChatTemplate, request: dict[str, Any], seconds: float) -> dict[str, str]:
    try:
        with _cpu_time(seconds):
            text = template.render(
                request["messages"],
                tools=request["tools"],
                add_generation_prompt=request["add_generation_prompt"],
                **request["variables"],
            )
    except ChatTemplateError as error:
        return {"error": str(error)}
    except OutOfTime:
        return {"error": f"the chat template took more than {seconds:g} s"}
    except MemoryError:
        return {"error": "the chat template needs more memory than it may take"}
    if len(text) > OUTPUT_CHARACTERS + 4 * request["size"]:
        return {"error": "the chat template made far more text than was sent"}
    return {"text": text}


def _receive(stream: IO[bytes]) -> dict[str, Any] | None:
    head = stream.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    size = int.from_bytes(head, "big")
    body = stream.read(size)
    if len(body) < size:
        return None
    message: dict[str, Any] = json.loads(body)
    return message | {"size": size}


def _send(stream: IO[bytes], message: dict[str, str]) -> None:
    body = json.dumps(message).encode()
    with contextlib.suppress(BrokenPipeError):
        stream.write(len(body).to_bytes(LENGTH_BYTES, "big") + body)
        stream.flush()


class _cpu_time:
    """Raises OutOfTime within the context once it has taken so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, self._seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def _out_of_time(*_: object) -> NoReturn:
    raise OutOfTime


def _limit_memory() -> None:
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    sys.exit(main())

"""``tandem chat`` against a scripted server."""

from __future__ import annotations

import io
import os
import signal
import sys

import pytest

from server.client.chat import run
from tests.unit.fake_openai_server import Script, serving, unused_url


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def chat(script: Script, *arguments: str) -> int:
    with serving(script) as url:
        return run(["--url", url, "--max-tokens", "3", *arguments])


@pytest.fixture
def type_lines(monkeypatch):
    """Sit at a terminal and type; an exception class is raised where the line would be read."""

    def typed(*lines: str | type[BaseException]) -> None:
        left = iter(lines)

        def read_line(prompt: str = "") -> str:
            line = next(left, EOFError)
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr("builtins.input", read_line)
        monkeypatch.setattr(sys, "stdin", Terminal())

    return typed


def pipe_in(monkeypatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


# -- one message


def test_one_message(capsys) -> None:
    script = Script(models=["m1"], finish_reason="stop")
    assert chat(script, "hello", "--system", "be brief", "--temperature", "0", "--api-key", "secret") == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("w0 w1 w2 \n", "")
    [body] = script.bodies
    assert body == {
        "model": "m1",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
        "stream": True,
        "temperature": 0.0,
        "max_tokens": 3,
    }
    assert script.authorizations == ["Bearer secret"]


def test_the_server_decides_what_is_not_given() -> None:
    script = Script(answer_tokens=1)
    with serving(script) as url:
        assert run(["--url", f"{url}/v1", "--model", "mine", "hello"]) == 0
    assert script.bodies[0].keys() == {"model", "messages", "stream"}
    assert script.bodies[0]["model"] == "mine"


def test_a_message_from_a_pipe(monkeypatch, capsys) -> None:
    pipe_in(monkeypatch, "grüße\nzwei \n".encode() + b"\xff\n")
    script = Script()
    assert chat(script) == 0
    assert script.bodies[0]["messages"] == [{"role": "user", "content": "grüße\nzwei \n\ufffd"}]
    assert capsys.readouterr().out == "w0 w1 w2 \n"


def test_an_argument_wins_over_a_pipe(monkeypatch) -> None:
    pipe_in(monkeypatch, b"from the pipe")
    script = Script()
    assert chat(script, "argument") == 0
    assert script.bodies[0]["messages"][0]["content"] == "argument"


def test_an_answer_that_was_cut_off_is_marked(capsys) -> None:
    assert chat(Script(finish_reason="length"), "hello") == 0
    captured = capsys.readouterr()
    assert captured.out == "w0 w1 w2 \n"
    assert "token limit" in captured.err


@pytest.mark.parametrize("arguments", [["hello"], ["hello", "--model", "m"]])
def test_no_server(arguments: list[str], capsys) -> None:
    url = unused_url()
    assert run(["--url", url, *arguments]) == 1
    assert f"no server answers at {url}; start one with `tandem serve`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (Script(status=lambda number: 400), "scripted 400"),
        (Script(error_after=1), "scripted failure"),
        (Script(break_after=1), "the server broke off the answer"),
        (Script(models=[]), "the server lists no model"),
    ],
)
def test_refusals_and_broken_streams(script: Script, message: str, capsys) -> None:
    assert chat(script, "hello") == 1
    assert f"tandem chat: {message}" in capsys.readouterr().err


def test_wrong_arguments(monkeypatch, capsys) -> None:
    pipe_in(monkeypatch, b" \n")
    assert run([]) == 2
    assert "the message is empty" in capsys.readouterr().err
    assert run(["a", "b"]) == 2
    for url in ("http://[::1", "http://h:port", "http://h:99999", "ftp://h", "http://"):
        assert run(["--url", url, "a"]) == 2
        assert "URL" in capsys.readouterr().err
    for key in ("schlüssel", "a\nb"):
        assert run(["--api-key", key, "a"]) == 2
        assert "printable ASCII" in capsys.readouterr().err
    for temperature in ("hot", "nan", "inf"):
        assert run(["--temperature", temperature, "a"]) == 2
        assert "finite" in capsys.readouterr().err
    assert run(["--help"]) == 0


def interrupt_at(frame: int):
    """A frame callback that presses Ctrl-C."""
    return lambda number: os.kill(os.getpid(), signal.SIGINT) if number == frame else None


def test_ctrl_c_ends_a_single_answer(capsys) -> None:
    script = Script(on_frame=interrupt_at(1), wait_for_disconnect_after=2)
    assert chat(script, "hello") == 130
    assert script.disconnected.wait(10)


# -- a conversation


def test_a_conversation_remembers(type_lines, capsys) -> None:
    type_lines("one", "", "two", "/reset", "three", "/exit", "never sent")
    script = Script(finish_reason="stop")
    assert chat(script, "--system", "s") == 0
    system = {"role": "system", "content": "s"}
    answer = {"role": "assistant", "content": "w0 w1 w2 "}

    def user(text: str) -> dict[str, str]:
        return {"role": "user", "content": text}

    assert [body["messages"] for body in script.bodies] == [
        [system, user("one")],
        [system, user("one"), answer, user("two")],
        [system, user("three")],
    ]
    assert capsys.readouterr().out.count("w0 w1 w2 \n") == 3


def test_ctrl_c_stops_the_answer_but_not_the_program(type_lines, capsys) -> None:
    type_lines("one", KeyboardInterrupt, "two")

    def stop_first(number: int) -> None:
        script.wait_for_disconnect_after = 2 if len(script.bodies) == 1 else None
        if number == 1 and len(script.bodies) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    script = Script(on_frame=stop_first)
    assert chat(script) == 0
    assert script.disconnected.wait(10)
    out = capsys.readouterr().out
    assert "[stopped]" in out and out.count("w0 w1 w2 ") == 1
    roles = [message["role"] for message in script.bodies[1]["messages"]]
    partial = script.bodies[1]["messages"][1:-1]
    assert roles[0] == "user" and roles[-1] == "user"
    assert all("w0 w1 ".startswith(message["content"]) for message in partial)


def test_failures_do_not_end_a_conversation(type_lines, capsys) -> None:
    type_lines("one", "two", "/what")
    script = Script(status=lambda number: 503 if number == 0 else 200)
    assert chat(script) == 0
    captured = capsys.readouterr()
    assert "[scripted 503]" in captured.err
    assert "/reset starts over" in captured.out
    assert script.bodies[1]["messages"] == [{"role": "user", "content": "two"}]


def test_terminals_get_no_control_characters(monkeypatch, type_lines) -> None:
    type_lines("one")
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    assert chat(Script(words=lambda number: "\x1b[2J\x07é\u200d\t😀\x9b\n")) == 0
    shown = screen.getvalue()
    assert shown.count("[2Jé\u200d\t😀\n") == 3
    assert not set(shown) & {"\x1b", "\x07", "\x9b"}

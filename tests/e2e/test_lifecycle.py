"""``tandem serve`` from its first line to its exit code, with a fake engine and a tiny tokenizer."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers

from tests.server import fake_engine_process as fake

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 30.0
COMMAND = """
import sys
from configs.loader import load_settings
from server.lifecycle import serve

flags = dict(argument.split("=", 1) for argument in sys.argv[1:])
code = serve(load_settings(flags, {}).settings, "tests.server.fake_engine_process")
print("torch was imported" if "torch" in sys.modules else "torch was not imported")
sys.exit(code)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    directory.mkdir()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["a tiny text"], trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text("{}")
    return directory


class Daemon:
    """The server process. Lines of both its outputs are in one file."""

    def __init__(self, directory: Path, flags: dict[str, object], behaviour: str = "") -> None:
        self._log = directory / "log"
        self._lives = directory / "lives"
        self._lives.touch()
        environment = {**os.environ, fake.BEHAVIOUR: behaviour, fake.LIVES: str(self._lives)}
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND, *(f"{name}={value}" for name, value in flags.items())],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    @property
    def engines(self) -> list[int]:
        return [int(line) for line in self._lives.read_text().split()]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None, f"it ended early:\n{self.output}"
            assert time.monotonic() < deadline, f"it takes too long:\n{self.output}"
            time.sleep(0.01)

    def url(self, word: str = "Ready on") -> str:
        """Of the line with this word, once it is there."""
        self.wait_for(lambda: f"{word} http" in self.output and "\n" in self.output.rpartition(word)[2])
        return self.output.rpartition(f"{word} ")[2].split()[0]

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        return self.process.wait(PATIENCE)


@pytest.fixture
def daemon(tmp_path: Path, model: Path) -> Iterator[Callable[..., Daemon]]:
    with contextlib.ExitStack() as stack:

        def start(behaviour: str = "", **flags: object) -> Daemon:
            made = Daemon(tmp_path, {"model": model, "port": 0, **flags}, behaviour)
            stack.callback(made.process.wait)
            stack.callback(made.process.kill)
            return made

        yield start


def completion(prompt: list[int], max_tokens: int = 5, stream: bool = False) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "stream": stream, "ignore_eos": True}


@contextlib.contextmanager
def streaming(url: str, body: dict[str, Any]) -> Iterator[Iterator[str]]:
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=PATIENCE) as response:
        assert response.status_code == 200, response.read()
        yield (line[6:] for line in response.iter_lines() if line.startswith("data: "))


def running(url: str) -> float:
    text = httpx.get(f"{url}/metrics").text
    values = [line.split()[-1] for line in text.splitlines() if line.startswith("tandem_requests_waiting{")]
    values += [line.split()[-1] for line in text.splitlines() if line.startswith("tandem_requests_running{")]
    return sum(map(float, values))


def is_alive(process_id: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_from_ready_to_an_orderly_end(daemon: Callable[..., Daemon]) -> None:
    server = daemon(host_kv_pages=50, page_size=8)
    url = server.url()
    assert "with tiny (" in server.output
    assert "host 50 KV pages (400 tokens), device 0 KV pages (0 tokens)" in server.output
    assert "Loading tiny: 0 %, 0 of 0 MB, 0 of 2 tensors\n" in server.output
    assert httpx.get(f"{url}/health").status_code == httpx.get(f"{url}/ready").status_code == 200
    answer = httpx.post(f"{url}/v1/completions", json=completion([100], max_tokens=3)).json()
    assert answer["usage"]["completion_tokens"] == 3
    server.signal()
    assert server.exit_code() == 0
    (access,) = [line for line in server.output.splitlines() if "POST" in line]
    assert "/v1/completions" in access and " 200 " in access
    assert "uvicorn" not in server.output
    assert "torch was not imported" in server.output
    assert not any(map(is_alive, server.engines))


def test_draining_refuses_new_requests_and_finishes_running_ones(daemon: Callable[..., Daemon]) -> None:
    server = daemon()
    url = server.url()
    with (
        streaming(url, completion([100], max_tokens=200, stream=True)) as frames,
        httpx.Client(base_url=url) as client,
    ):
        next(frames)
        assert client.get("/ready").status_code == 200
        server.signal(signal.SIGINT)
        server.wait_for(lambda: "draining" in server.output)
        for get in (client.get, httpx.get):
            ready = get("/ready" if get == client.get else f"{url}/ready")
            assert ready.status_code == 503
        refused = client.post("/v1/completions", json=completion([100]))
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "server_draining"
        assert int(refused.headers["Retry-After"]) >= 1
        *tokens, done = frames
        assert done == "[DONE]"
        assert json.loads(tokens[-1])["choices"][0]["finish_reason"] == "length"
    assert server.exit_code() == 0


def test_what_outlasts_the_drain_timeout_gets_an_error(daemon: Callable[..., Daemon]) -> None:
    server = daemon(drain_timeout="0.2")
    url = server.url()
    with streaming(url, completion([fake.SILENT, 7], stream=True)) as frames:
        server.signal()
        error, done = frames
    assert json.loads(error)["error"]["code"] == "server_draining"
    assert done == "[DONE]"
    assert server.exit_code() == 0
    assert "1 requests did not end in time" in server.output


def test_a_second_signal_ends_it_at_once(daemon: Callable[..., Daemon]) -> None:
    server = daemon(drain_timeout=600)
    url = server.url()
    with streaming(url, completion([fake.SILENT, 7], stream=True)) as frames:
        server.signal()
        server.wait_for(lambda: "draining" in server.output)
        server.signal()
        assert server.exit_code() == 128 + signal.SIGTERM
        # The connection may be cut before the error is sent, but no error blames the engine.
        with contextlib.suppress(httpx.RemoteProtocolError):
            for frame in frames:
                assert frame == "[DONE]" or json.loads(frame)["error"]["code"] == "server_draining"
    assert not any(map(is_alive, server.engines))


def test_while_loading_the_port_is_open_and_says_so(daemon: Callable[..., Daemon]) -> None:
    server = daemon("load-forever")
    url = server.url("listening on")
    assert httpx.get(f"{url}/health").status_code == 200
    assert httpx.get(f"{url}/ready").status_code == 503
    refused = httpx.post(f"{url}/v1/completions", json=completion([100]))
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "model_loading"
    assert int(refused.headers["Retry-After"]) >= 1
    server.signal()
    assert server.exit_code() == 0
    assert "Ready" not in server.output
    assert not any(map(is_alive, server.engines))


def test_a_model_the_engine_refuses_is_one_line_and_no_port(daemon: Callable[..., Daemon]) -> None:
    server = daemon("refuse")
    assert server.exit_code() == 1
    assert f"tandem serve: {fake.REFUSAL}\n" in server.output
    assert "listening" not in server.output and "Traceback" not in server.output


def test_a_model_that_is_not_there(daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    server = daemon(model=tmp_path / "nothing.gguf")
    assert server.exit_code() == 1
    (line,) = [line for line in server.output.splitlines() if line.startswith("tandem serve: ")]
    assert "nothing.gguf" in line
    assert server.engines == []


def test_a_model_without_tokenizer(daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    server = daemon(model=tmp_path)
    assert server.exit_code() == 1
    assert "tandem serve: " in server.output and "tokenizer.json" in server.output
    assert "Traceback" not in server.output
    assert not any(map(is_alive, server.engines))


def test_an_occupied_port(daemon: Callable[..., Daemon]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = daemon(port=port)
        assert server.exit_code() == 2
    assert f"tandem serve: port {port} on 127.0.0.1 is in use; choose another with --port\n" in server.output
    assert server.engines == []


def test_an_address_that_is_not_ours(daemon: Callable[..., Daemon]) -> None:
    server = daemon(host="no such host")
    assert server.exit_code() == 2
    assert "tandem serve: can't listen on no such host" in server.output


def test_a_dead_engine_is_an_error_event_and_then_a_new_engine(daemon: Callable[..., Daemon]) -> None:
    server = daemon()
    url = server.url()
    with streaming(url, completion([fake.SILENT, 7], stream=True)) as frames:
        server.wait_for(lambda: running(url) == 1)
        os.kill(server.engines[0], signal.SIGKILL)
        error, done = frames
    assert json.loads(error)["error"]["type"] == "server_error"
    assert done == "[DONE]"
    refused = httpx.post(f"{url}/v1/completions", json=completion([100]))
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "model_loading"
    server.wait_for(lambda: httpx.get(f"{url}/ready").status_code == 200)
    assert httpx.post(f"{url}/v1/completions", json=completion([100])).status_code == 200
    assert "killed by signal SIGKILL" in server.output
    assert "tandem_engine_restarts_total" in httpx.get(f"{url}/metrics").text


def test_it_gives_up_with_an_exit_code(daemon: Callable[..., Daemon]) -> None:
    server = daemon(engine_restarts=0)
    url = server.url()
    with streaming(url, completion([fake.SILENT, 7], stream=True)) as frames:
        server.wait_for(lambda: running(url) == 1)
        os.kill(server.engines[0], signal.SIGKILL)
        error, _ = frames
    assert "error" in json.loads(error)
    assert server.exit_code() == 1
    assert "it died too often" in server.output
    assert len(server.engines) == 1


def test_a_killed_server_takes_its_engine_along(daemon: Callable[..., Daemon]) -> None:
    server = daemon()
    server.url()
    (engine,) = server.engines
    server.process.kill()
    server.process.wait(PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while is_alive(engine):
        assert time.monotonic() < deadline
        time.sleep(0.01)

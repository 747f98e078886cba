"""What clients see when the engine dies and when the daemon is told to go."""

from __future__ import annotations

import json
import signal
import threading
import time

import httpx
import psutil
import pytest

from tests.e2e.conftest import MODEL
from tests.e2e.daemon import Daemon


def body(max_tokens: int, stream: bool = True) -> dict[str, object]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Count to a thousand."}],
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream": stream,
        "temperature": 0,
    }


class Reader(threading.Thread):
    """Reads one stream to its end."""

    def __init__(self, daemon: Daemon, max_tokens: int) -> None:
        super().__init__(daemon=True)
        self._url = daemon.url
        self._max_tokens = max_tokens
        self.started = threading.Event()
        self.frames: list[str] = []

    def run(self) -> None:
        with (
            httpx.Client(base_url=self._url, timeout=60) as client,
            client.stream("POST", "/v1/chat/completions", json=body(self._max_tokens)) as response,
        ):
            for line in response.iter_lines():
                if line.startswith("data: "):
                    self.frames.append(line.removeprefix("data: "))
                    self.started.set()

    def begin(self) -> None:
        self.start()
        assert self.started.wait(30)


@pytest.fixture
def own_daemon():
    # On a busy machine a request that is let finish takes longer than the default 30 s.
    with Daemon("--host-kv-pages", "600", "--drain-timeout", "90") as daemon:
        yield daemon


def test_a_killed_engine_is_restarted_and_everyone_is_told(own_daemon: Daemon):
    readers = [Reader(own_daemon, 4000) for _ in range(3)]
    for reader in readers:
        reader.begin()
    own_daemon.engine.send_signal(signal.SIGKILL)
    for reader in readers:
        reader.join(10)
        assert not reader.is_alive()
        assert reader.frames[-1] == "[DONE]"
        error = json.loads(reader.frames[-2])["error"]
        assert error["type"] == "server_error" and set(error) == {"message", "type", "param", "code"}
    with own_daemon.client() as client:
        refused = client.post("/v1/chat/completions", json=body(4, stream=False))
        assert refused.status_code == 503
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json()["error"]["type"] == "server_error"
        assert client.get("/ready").status_code == 503
        own_daemon.wait_until_ready()
        answer = client.post("/v1/chat/completions", json=body(4, stream=False))
        assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 4
    assert own_daemon.metric("tandem_engine_restarts_total") == 1
    own_daemon.wait_until_idle()


def test_sigterm_drains(own_daemon: Daemon):
    reader = Reader(own_daemon, 150)
    reader.begin()
    engine = own_daemon.engine
    own_daemon.process.send_signal(signal.SIGTERM)
    refusal = None
    deadline = time.monotonic() + 5
    with own_daemon.client() as client:
        while time.monotonic() < deadline and refusal is None:
            response = client.post("/v1/chat/completions", json=body(1, stream=False))
            refusal = response if response.status_code == 503 else None
    assert refusal is not None and refusal.json()["error"]["code"] == "server_draining"
    assert int(refusal.headers["Retry-After"]) >= 1
    reader.join(90)
    assert reader.frames[-1] == "[DONE]"
    assert json.loads(reader.frames[-2])["choices"][0]["finish_reason"] == "length"
    assert own_daemon.process.wait(20) == 0
    assert not psutil.pid_exists(engine.pid) or engine.status() == psutil.STATUS_ZOMBIE


def test_the_engine_does_not_outlive_a_killed_server(own_daemon: Daemon):
    engine = own_daemon.engine
    own_daemon.process.kill()
    own_daemon.process.wait(5)
    engine.wait(10)

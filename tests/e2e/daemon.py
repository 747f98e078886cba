"""A real daemon: HTTP process, engine process, SmolLM2."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Self

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[2]
READY = re.compile(r"(http://[\d.]+:\d+)")
START_SECONDS = 90


class Daemon:
    """``tandem serve`` on a free port, as a context manager."""

    def __init__(self, *options: str, launcher: tuple[str, ...] = ("-m", "server.cli", "serve")) -> None:
        self._command = [sys.executable, *launcher, "--port", "0", *options]
        self.lines: deque[str] = deque(maxlen=2000)
        self._ready = threading.Event()
        self.url = ""

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        threading.Thread(target=self._read, daemon=True).start()
        if not self._ready.wait(START_SECONDS) or not self.url:
            self.process.kill()
            raise AssertionError("the daemon did not become ready:\n" + self.output())
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(45)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise

    def output(self) -> str:
        """What the daemon printed."""
        return "".join(self.lines)

    def client(self, timeout: float = 60) -> httpx.Client:
        """An HTTP client for it."""
        return httpx.Client(base_url=self.url, timeout=timeout)

    @property
    def engine(self) -> psutil.Process:
        """Its engine process."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if any("engine.process" in part for part in child.cmdline()):
                return child
        raise AssertionError("no engine process:\n" + self.output())

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels."""
        text = httpx.get(self.url + "/metrics", timeout=10).text
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
        assert any(one.name == name for one in samples), f"no metric {name}"
        return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())

    def wait_until_idle(self, seconds: float = 10) -> None:
        """Wait until no request runs and no page is held."""
        busy = ("tandem_requests_running", "tandem_requests_waiting", "tandem_kv_pages_used")
        deadline = time.monotonic() + seconds
        while any(self.metric(name) for name in busy):
            left = {name: self.metric(name) for name in busy}
            assert time.monotonic() < deadline, f"not idle after {seconds} s: {left}\n{self.output()}"
            time.sleep(0.05)

    def wait_until_ready(self, seconds: float = START_SECONDS) -> None:
        """Wait until /ready says so."""
        deadline = time.monotonic() + seconds
        while httpx.get(self.url + "/ready", timeout=10).status_code != 200:
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.05)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            found = READY.search(line)
            if found and "ready" in line.lower():
                self.url = found[1]
                self._ready.set()
        self._ready.set()

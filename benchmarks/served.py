"""A server in a process of its own, measured by ``tandem bench`` over HTTP."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.contender import BenchmarkError, Case, Figures, Latency

TANDEM = (sys.executable, "-m", "server.cli")
"""What runs ``tandem``: the one of this source tree."""

_LOAD_TIMEOUT = 600.0
_STOP_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a server is started, and how one talks to it."""

    name: str
    """For messages: what of the command line tells a reader which server it is."""
    command: Sequence[str]
    port: int
    ready: str = "/health"
    """Answers with 200 once requests can be served."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Beside this process's own."""
    model: str | None = None
    """What requests call the model; None: whatever the server lists first."""


class Served:
    """A running server; see ``benchmarks.contender.Contender``."""

    def __init__(
        self, name: str, dtype: str, launch: Launch, tandem: Sequence[str] = TANDEM, warm_up: int = 0
    ) -> None:
        """Start the server and wait until it is ready.

        Args:
            name: for the table.
            dtype: for the table.
            launch: how to start it.
            tandem: what runs ``tandem bench``.
            warm_up: run so many short answers at once before anything is measured.

        Raises:
            BenchmarkError: it does not get ready; the message has the end of its output.
        """
        self.name = name
        self.dtype = dtype
        self._launch = launch
        self._tandem = list(tandem)
        self._directory = tempfile.TemporaryDirectory(prefix="tandem-benchmark-")
        self._log = Path(self._directory.name) / "server.log"
        self._url = f"http://127.0.0.1:{launch.port}"
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(
                launch.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **launch.environment},
            )
        try:
            self._wait_until_ready()
            if warm_up:
                self._bench(Case(warm_up, 64, 16), seed=0)
        except BaseException:
            self.close()
            raise

    def measure(self, case: Case, seed: int) -> Figures:
        """Run one case: one request for each stream, all at once.

        Raises:
            BenchmarkError: a request failed.
        """
        row = self._bench(case, seed)
        if round(row["output_tokens_mean"]) != case.output_tokens:
            raise BenchmarkError(
                f"{self._launch.name} ends answers early: {row['output_tokens_mean']:.1f} tokens on average "
                f"at {case.label}, which would make its figures better than they are"
            )
        return Figures(
            decode=None if case.is_prefill else row["decode_tokens_per_second"],
            output=row["output_tokens_per_second"],
            prefill=row["prefill_tokens_per_second"],
            ttft=_latency(row["ttft"]),
            inter_token=None if case.is_prefill else _latency(row["inter_token"]),
        )

    def close(self) -> None:
        """Stop the server."""
        self._server.terminate()
        try:
            self._server.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._directory.cleanup()

    def _bench(self, case: Case, seed: int) -> dict[str, Any]:
        file = Path(self._directory.name) / "report.json"
        options = {
            "--url": self._url,
            "--endpoint": "completions",
            "--concurrency": case.streams,
            "--requests": case.streams,
            "--prompt-tokens": case.prompt_tokens,
            "--output-tokens": case.output_tokens,
            "--seed": seed,
            "--json": file,
            **({"--model": self._launch.model} if self._launch.model else {}),
        }
        flags = [str(part) for option in options.items() for part in option]
        done = subprocess.run([*self._tandem, "bench", *flags], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchmarkError(f"tandem bench failed:\n{done.stdout}{done.stderr}{self._log_tail()}")
        row: dict[str, Any] = msgspec.json.decode(file.read_bytes())["rows"][0]
        return row

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _LOAD_TIMEOUT
        while time.monotonic() < deadline:
            if self._server.poll() is not None:
                raise BenchmarkError(f"{self._launch.name} ended by itself:\n{self._log_tail()}")
            try:
                with urllib.request.urlopen(f"{self._url}{self._launch.ready}", timeout=5):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):  # not listening, or 503
                time.sleep(0.1)
        raise BenchmarkError(
            f"{self._launch.name} is not ready after {_LOAD_TIMEOUT:.0f} s:\n{self._log_tail()}"
        )

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _latency(quantiles: dict[str, float]) -> Latency:
    return Latency(quantiles["p50"], quantiles["p99"])

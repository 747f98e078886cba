"""``tandem serve`` in a process of its own, measured by ``tandem bench`` over HTTP."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.contender import BenchmarkError, Case, Figures, Latency

_LOAD_TIMEOUT = 600.0
_STOP_TIMEOUT = 30.0


class TandemContender:
    """A running server; see ``benchmarks.contender.Contender``."""

    name = "tandem"

    def __init__(self, command: Sequence[str], model: str, dtype: str, serve_options: Sequence[str]) -> None:
        """Start the server and wait until it is ready.

        Args:
            command: what runs ``tandem``.
            model: as for ``tandem serve``.
            dtype: compute type.
            serve_options: more flags for ``tandem serve``.

        Raises:
            BenchmarkError: it does not get ready; the message has the end of its output.
        """
        self.dtype = dtype
        self._command = list(command)
        self._directory = tempfile.TemporaryDirectory(prefix="tandem-benchmark-")
        self._log = Path(self._directory.name) / "serve.log"
        port = _free_port()
        self._url = f"http://127.0.0.1:{port}"
        arguments = ["serve", model, "--dtype", dtype, "--port", str(port), *serve_options]
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(
                [*self._command, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def measure(self, case: Case, seed: int) -> Figures:
        """Run one case: one request for each stream, all at once.

        Raises:
            BenchmarkError: a request failed.
        """
        row = self._bench(case, seed)
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
        }
        flags = [str(part) for option in options.items() for part in option]
        done = subprocess.run([*self._command, "bench", *flags], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BenchmarkError(f"tandem bench failed:\n{done.stdout}{done.stderr}{self._log_tail()}")
        row: dict[str, Any] = msgspec.json.decode(file.read_bytes())["rows"][0]
        return row

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _LOAD_TIMEOUT
        while time.monotonic() < deadline:
            if self._server.poll() is not None:
                raise BenchmarkError(f"tandem serve ended by itself:\n{self._log_tail()}")
            try:
                with urllib.request.urlopen(f"{self._url}/ready", timeout=5):
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):  # not listening, or 503
                time.sleep(0.1)
        raise BenchmarkError(f"tandem serve is not ready after {_LOAD_TIMEOUT:.0f} s:\n{self._log_tail()}")

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]


def _latency(quantiles: dict[str, float]) -> Latency:
    return Latency(quantiles["p50"], quantiles["p99"])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port

"""Hugging Face transformers' ``generate``, without a server."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from benchmarks.contender import BenchmarkError, Case, Figures


class TransformersContender:
    """A worker process; see ``benchmarks.contender.Contender`` and ``benchmarks.transformers_worker``."""

    name = "transformers"

    def __init__(self, model: str, dtype: str) -> None:
        """Load the model.

        Raises:
            BenchmarkError: that failed; the worker has printed why.
        """
        self.dtype = dtype
        self._worker = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.transformers_worker", model, dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._line() != "ready\n":
            raise BenchmarkError(f"transformers can't load {model}")

    def measure(self, case: Case, seed: int) -> Figures:
        """Run one case as one batch.

        Raises:
            BenchmarkError: the worker died; it has printed why.
        """
        assert self._worker.stdin is not None
        self._worker.stdin.write(msgspec.json.encode({"case": case, "seed": seed}).decode() + "\n")
        self._worker.stdin.flush()
        line = self._line()
        if not line:
            raise BenchmarkError(f"transformers failed at {case.label}")
        return msgspec.json.decode(line, type=Figures)

    def close(self) -> None:
        """End the worker."""
        self._worker.communicate()

    def _line(self) -> str:
        assert self._worker.stdout is not None
        return self._worker.stdout.readline()

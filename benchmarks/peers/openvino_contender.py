"""OpenVINO GenAI's continuous batching, which comes without a server of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec

from benchmarks.contender import BenchmarkError, Case, Figures, Latency
from benchmarks.peers.loads import Room
from server.client.bench.metrics import summarise
from server.client.bench.records import Frame, RequestRecord

_WORKER = Path(__file__).with_name("openvino_worker.py")
_STOP_TIMEOUT = 30.0


class Answer(msgspec.Struct, frozen=True):
    """What the worker saw of one request, in seconds on its clock."""

    started: float
    frames: list[tuple[float, int]]
    """When tokens came, and how many."""


class OpenVinoContender:
    """A worker process in OpenVINO's own environment; see ``benchmarks.contender.Contender``."""

    name = "openvino-genai (in process)"

    def __init__(self, python: Path, model: Path, weights: str, room: Room) -> None:
        """Load the model.

        Raises:
            BenchmarkError: that failed; the worker has printed why.
        """
        self.dtype = weights
        self._vocabulary = msgspec.json.decode((model / "config.json").read_bytes())["vocab_size"]
        self._worker = subprocess.Popen(
            [str(python), str(_WORKER), str(model), str(room.streams), str(room.context)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        while line := self._line():
            if line == "ready\n":
                break
        else:
            raise BenchmarkError(f"openvino-genai can't load {model}")
        self.measure(Case(4, 64, 16), seed=0)

    def measure(self, case: Case, seed: int) -> Figures:
        """Run one case; all requests are added before the first step.

        Raises:
            BenchmarkError: the worker died; it has printed why.
        """
        assert self._worker.stdin is not None
        job = {
            "streams": case.streams,
            "prompt_tokens": case.prompt_tokens,
            "output_tokens": case.output_tokens,
            "seed": seed,
            "vocabulary": self._vocabulary,
        }
        self._worker.stdin.write(msgspec.json.encode(job).decode() + "\n")
        self._worker.stdin.flush()
        line = self._line()
        if not line:
            raise BenchmarkError(f"openvino-genai failed at {case.label}")
        return figures_of(case, msgspec.json.decode(line, type=list[Answer]))

    def close(self) -> None:
        """End the worker."""
        try:
            self._worker.communicate(timeout=_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._worker.kill()
            self._worker.wait()

    def _line(self) -> str:
        assert self._worker.stdout is not None
        return self._worker.stdout.readline()


def figures_of(case: Case, answers: list[Answer]) -> Figures:
    """What ``tandem bench`` would have made of the same answers.

    Raises:
        BenchmarkError: an answer is too short.
    """
    records = [_record(case, answer) for answer in answers]
    if any(record.output_tokens != case.output_tokens for record in records):
        raise BenchmarkError(f"openvino-genai ends answers early at {case.label}")
    summary = summarise(case.label, records, case.streams)
    assert summary.ttft is not None
    gaps = summary.inter_token
    return Figures(
        decode=None if case.is_prefill else summary.decode_tokens_per_second,
        output=summary.output_tokens_per_second,
        prefill=summary.prefill_tokens_per_second,
        ttft=Latency(summary.ttft.p50, summary.ttft.p99),
        inter_token=None if case.is_prefill or gaps is None else Latency(gaps.p50, gaps.p99),
    )


def _record(case: Case, answer: Answer) -> RequestRecord:
    last = answer.frames[-1][0]
    return RequestRecord(
        started=answer.started,
        finished=last,
        frames=tuple(Frame(time, tokens) for time, tokens in answer.frames),
        last_token=last,
        prompt_tokens=case.prompt_tokens,
        output_tokens=sum(tokens for _, tokens in answer.frames),
    )

"""What an iteration of the engine costs beside the model: microseconds of each piece.

python -m benchmarks.overhead --sequences 64

The engine's own scheduler, batch layout, sampler and encoder with a model that costs nothing. The server's
part is measured by benchmarks.overhead_server.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, TypeVar

import msgspec

from benchmarks.imaginary_engine import ImaginaryRunner, imaginary_executor, limits
from benchmarks.machine import as_in_the_engine, description
from engine import torch_executor
from scheduler.iteration_loop import IterationLoop
from scheduler.messages import AddRequest, IterationOutput
from scheduler.scheduler import Scheduler
from scheduler.types import Request, RequestId, SamplingParams

_CONTEXT = 4096
_WARM_UP = 30

Result = TypeVar("Result")


class Stopwatch:
    """Time spent in named pieces, each a function that is replaced by a timed one."""

    def __init__(self) -> None:
        self.iterations: list[dict[str, float]] = []

    def timed(self, name: str, function: Callable[..., Result]) -> Callable[..., Result]:
        """``function``, its time added to ``name`` of the current iteration."""

        def call(*arguments: Any, **named: Any) -> Result:  # noqa: ANN401 - whatever it takes
            started = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                row = self.iterations[-1]
                row[name] = row.get(name, 0.0) + time.perf_counter() - started

        return call

    def microseconds(self, name: str) -> float:
        """Median over iterations."""
        return median(row.get(name, 0.0) for row in self.iterations) * 1e6


class _Requests:
    """An inbox that has all requests from the beginning."""

    def __init__(self, count: int, prompt: int, sampling: dict[str, Any]) -> None:
        self._messages = [
            AddRequest(
                Request(
                    request_id=RequestId(f"chatcmpl-{number:032x}"),
                    prompt_token_ids=tuple(range(3, 3 + prompt)),
                    sampling=SamplingParams(max_tokens=_CONTEXT, ignore_eos=True, seed=number, **sampling),
                    cache_salt=str(number),
                )
            )
            for number in range(count)
        ]

    def take(self, wait: bool) -> list[AddRequest]:
        """All, once."""
        messages, self._messages = self._messages, []
        return messages


class _Clock:
    def now(self) -> float:
        return time.monotonic()


def measure(count: int, prompt: int, iterations: int, sampling: dict[str, Any]) -> Stopwatch:
    """Pieces of ``iterations`` iterations in which ``count`` sequences decode."""
    watch = Stopwatch()
    watch.iterations.append({})
    scheduler = Scheduler(limits(count, _CONTEXT))
    executor = imaginary_executor(count, 0.0)
    encoder = msgspec.msgpack.Encoder()
    messages: list[IterationOutput] = []
    loop = IterationLoop(scheduler, executor, _Clock(), _Requests(count, prompt, sampling), messages.append)
    while scheduler.stats(None, 0.0).sequences_running < count or not messages[-1].outputs:
        loop.step()
    for _ in range(_WARM_UP):
        loop.step()
    for owner, name in (
        (scheduler, "schedule"),
        (executor, "submit"),
        (scheduler, "commit"),
        (scheduler, "stats"),
        (ImaginaryRunner, "run"),
        (torch_executor, "make_batch"),
        (torch_executor, "tokens_and_scores"),
    ):
        setattr(owner, name, watch.timed(name, getattr(owner, name)))
    step, encode = watch.timed("step", loop.step), watch.timed("encode", encoder.encode)
    for _ in range(iterations):
        watch.iterations.append({})
        step()
        encode(messages.pop())
    del watch.iterations[0]
    return watch


def main() -> int:
    """Measure and print a table."""
    as_in_the_engine("benchmarks.overhead")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", allow_abbrev=False)
    parser.add_argument("--sequences", type=int, default=64, help="that decode at once; default: %(default)s")
    parser.add_argument("--prompt", type=int, default=256, help="tokens; default: %(default)s")
    parser.add_argument("--iterations", type=int, default=300, help="default: %(default)s")
    parser.add_argument("--sampling", default='{"temperature": 0.0}', help="JSON; default: %(default)s")
    options = parser.parse_args()
    sampling = msgspec.json.decode(options.sampling)
    watch = measure(options.sequences, options.prompt, options.iterations, sampling)
    print(f"Machine: {description('torch', 'numpy')}")
    print(f"Repeat: python -m benchmarks.overhead {' '.join(sys.argv[1:])}")
    print(f"Microseconds an iteration, medians, {options.sequences} sequences, {sampling}\n")
    pieces = ("schedule", "make_batch", "tokens_and_scores", "commit", "stats")
    model, step = watch.microseconds("run"), watch.microseconds("step")
    for name in pieces:
        print(f"{watch.microseconds(name):8.1f}  {name}")
    rest = step - model - sum(map(watch.microseconds, pieces))
    print(f"{rest:8.1f}  the rest of the loop")
    print(f"{step - model:8.1f}  all in the loop's thread")
    print(f"{watch.microseconds('encode'):8.1f}  encoding the message, in the writer's thread")
    return 0


if __name__ == "__main__":
    sys.exit(main())

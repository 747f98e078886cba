"""Prefill and decode throughput of ``tandem serve``, optionally beside transformers' ``generate``.

    python -m benchmarks.throughput --dtypes bfloat16,float32 --with-transformers

All contenders are loaded at once and measured in turns, round after round, so that a change of the
machine's mood hits all of them; figures are medians. A measurement during which other processes
took much of the machine is repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.contender import BenchmarkError, Case, Contender
from benchmarks.machine import LoadMeter, description
from benchmarks.quiet import quietest
from benchmarks.results import Sample, ratios, table
from benchmarks.served import TANDEM
from benchmarks.tandem_contender import TandemContender
from benchmarks.transformers_contender import TransformersContender


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table and ratios.

    Returns:
        0, or 1 if a contender failed.
    """
    options = _parser().parse_args(argv)
    print(f"Machine: {description('torch', 'transformers')}")
    print(f"Model: {options.model}; medians of {options.rounds} round(s); all streams start at once")
    print(f"Repeat: python -m benchmarks.throughput {shlex.join(sys.argv[1:] if argv is None else argv)}\n")
    samples: list[Sample] = []
    try:
        with contextlib.ExitStack() as stack:
            contenders = _start(options, stack)
            for number in range(options.rounds):
                samples += _round(number, contenders, options)
    except BenchmarkError as error:
        print(f"benchmarks.throughput: {error}", file=sys.stderr)
        return 1
    print(table(samples))
    print("\n" + "\n".join(f"* {line}" for line in ratios(samples)))
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(samples), indent=2) + b"\n")
    return 0


def _start(options: argparse.Namespace, stack: contextlib.ExitStack) -> list[Contender]:
    contenders: list[Contender] = []
    for dtype in options.dtypes:
        _tell(f"starting tandem serve {options.model} --dtype {dtype}")
        serve_options = shlex.split(options.serve_options)
        contenders.append(TandemContender(options.tandem, options.model, dtype, serve_options))
        stack.callback(contenders[-1].close)
        if options.with_transformers:
            _tell(f"loading transformers, {dtype}")
            contenders.append(TransformersContender(options.model, dtype))
            stack.callback(contenders[-1].close)
    return contenders


def _round(number: int, contenders: Sequence[Contender], options: argparse.Namespace) -> list[Sample]:
    """Every case once by every contender; the first to go changes from round to round."""
    first = number % len(contenders)
    samples = []
    for case in _cases(options):
        for contender in [*contenders[first:], *contenders[:first]]:
            if contender.name != "tandem" and case.streams not in options.transformers_batches:
                continue
            samples.append(_quiet_sample(number, contender, case, options))
    return samples


def _cases(options: argparse.Namespace) -> list[Case]:
    decode = [Case(streams, options.prompt_tokens, options.output_tokens) for streams in options.streams]
    return [Case(1, options.prefill_tokens, 1), *decode]


def _quiet_sample(number: int, contender: Contender, case: Case, options: argparse.Namespace) -> Sample:
    def measure(attempt: int) -> Sample:
        meter = LoadMeter()
        figures = contender.measure(case, seed=1000 * number + attempt)
        sample = Sample(contender.name, contender.dtype, case, number, figures, meter.read())
        _tell(f"round {number + 1}: {sample.line()}")
        return sample

    return quietest(measure, options.quiet, options.retries)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput", allow_abbrev=False)
    add = parser.add_argument
    add("--model", default="smollm2-135m-instruct", help="as for tandem serve (default: %(default)s)")
    add("--dtypes", type=_names, default=["bfloat16", "float32"], help="default: bfloat16,float32")
    add("--streams", type=_numbers, default=[1, 4, 16, 64], help="default: 1,4,16,64")
    add("--prompt-tokens", type=int, default=128, help="in the stream cases (default: %(default)s)")
    add("--output-tokens", type=int, default=128, help="in the stream cases (default: %(default)s)")
    add("--prefill-tokens", type=int, default=512, help="in the prefill case (default: %(default)s)")
    add("--rounds", type=int, default=3, help="default: %(default)s")
    add("--with-transformers", action="store_true", help="measure transformers' generate, too")
    add(
        "--transformers-batches",
        type=_numbers,
        default=[1, 4, 16],
        help="stream cases it takes part in (default: 1,4,16)",
    )
    add(
        "--quiet",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="repeat a measurement if others took more of the machine (default: %(default)s)",
    )
    add("--retries", type=int, default=2, help="how often at most (default: %(default)s)")
    add("--serve-options", default="", help="more flags for tandem serve, as one string")
    add(
        "--tandem",
        type=shlex.split,
        default=list(TANDEM),
        metavar="COMMAND",
        help="what runs tandem (default: the one of this source tree)",
    )
    add("--json", type=Path, metavar="FILE", help="also write every sample there")
    return parser


def _names(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())

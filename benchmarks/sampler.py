"""Milliseconds to sample one token for each of a batch of rows, for several kinds of requests.

python -m benchmarks.sampler --rows 64 --vocab 49152
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import median
from typing import Any

import torch

from benchmarks.machine import LoadMeter, description
from engine.kernels.loader import load_kernels
from engine.sampler import sample
from engine.sampling.native import NativeSampler
from scheduler.plan import SampleSpec
from scheduler.types import SamplingParams

_HISTORY = tuple(range(256))
_KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 5},
    {"temperature": 0.0, "repetition_penalty": 1.1},
    {"temperature": 0.0, "frequency_penalty": 0.5},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 0.7, "top_k": 40},
    {"temperature": 0.7, "top_k": 40, "top_p": 0.95},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.1},
)


def main() -> int:
    """Measure every kind and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampler", allow_abbrev=False)
    parser.add_argument("--rows", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--vocab", type=int, default=49_152, help="default: %(default)s")
    parser.add_argument("--spread", type=float, default=3.0, help="standard deviation of the random logits")
    parser.add_argument("--cpu-kernels", default="auto", help="as for serving; torch: numpy samples")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=15, help="default: %(default)s")
    options = parser.parse_args()
    logits = torch.randn(options.rows, options.vocab, generator=torch.Generator().manual_seed(0))
    logits *= options.spread
    print(f"Machine: {description('torch', 'numpy')}")
    print(f"Repeat: python -m benchmarks.sampler {' '.join(sys.argv[1:])}")
    kernels = load_kernels(options.cpu_kernels, options.threads)
    native = None if kernels is None else NativeSampler(kernels)
    by = "numpy" if kernels is None else f"{kernels.instruction_set} kernels, {options.threads} threads"
    print(f"Medians of {options.repeats}, {options.rows} rows, vocabulary {options.vocab}, {by}\n")
    meter = LoadMeter()
    for kind in _KINDS:
        name = ", ".join(f"{key} {value}" for key, value in kind.items())
        print(f"{_milliseconds(logits, kind, options.repeats, native):8.2f} ms  {name}")
    print(f"\nOthers' share of the CPU: {meter.read().others:.0%}")
    return 0


def _milliseconds(
    logits: torch.Tensor, kind: dict[str, Any], repeats: int, native: NativeSampler | None
) -> float:
    specs = [
        SampleSpec(
            params=SamplingParams(max_tokens=512, seed=row, **kind),
            choice=0,
            output_length=128,
            prompt_length=128,
            history=_HISTORY,
        )
        for row in range(len(logits))
    ]
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        sample(logits, specs, (2,), native)
        seconds.append(time.perf_counter() - started)
    return median(seconds) * 1e3


if __name__ == "__main__":
    sys.exit(main())

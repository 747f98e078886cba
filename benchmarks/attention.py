"""Native attention against what the machine can do, a per-head loop, and torch.

python -m benchmarks.attention
python -m benchmarks.attention --threads 1 --contexts 256,8192 --formats bfloat16

The bound of a shape is the longer of its bytes over the read bandwidth and its operations over the rate of a
float32 matrix product, both measured in the same run on the same threads; a share of 80 % takes 1.25 times
the bound. Pages are shuffled and layers taken in turn, over more memory than caches hold.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle, product
from statistics import median
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from benchmarks.machine import LoadMeter, as_in_the_engine, description
from engine.attention.base import AttentionPlan
from engine.attention.host import HostAttention
from engine.attention.native import NativeAttention
from engine.batch import Batch, Sequences
from engine.kernels.loader import Kernels, load_kernels
from engine.kv_storage import KVStorage, page_bytes
from engine.models.config import ModelConfig

T = TypeVar("T")

PAGE_SIZE = 16
MEMORY = 768 * 2**20
"""Bytes of KV that the layers of a case are taken from, so that none is still in a cache."""
CALL_BYTES = 32 * 2**20
"""Bytes that one call reads, about: short contexts come in more rows."""
TRIES, QUIET = 4, 0.1
SHAPES = {"MHA": (8, 1, 128), "GQA 3": (3, 3, 64), "GQA 4": (8, 4, 128), "GQA 8": (4, 8, 128)}
"""KV heads, query heads of each, head size. GQA 3 is SmolLM2, GQA 4 is Llama 3 8B."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the same threads do at best."""

    bytes_a_second: float
    operations_a_second: float

    def bound(self, bytes_read: float, operations: float) -> float:
        """Seconds that a call takes at least."""
        return max(bytes_read / self.bytes_a_second, operations / self.operations_a_second)


@dataclass(frozen=True, slots=True)
class Case:
    """A decode batch of rows of one length, or one prefill chunk at the end of it."""

    shape: str
    context: int
    kv_dtype: torch.dtype
    rows: int
    prefill: bool = False

    @property
    def config(self) -> ModelConfig:
        kv_heads, group, dim = SHAPES[self.shape]
        one_layer = ModelConfig(
            family="llama", name=self.shape, vocab_size=1, hidden_size=1, intermediate_size=1, num_layers=1,
            num_heads=kv_heads * group, num_kv_heads=kv_heads, head_dim=dim, context_length=self.context,
            rms_norm_eps=1e-5, rope_theta=1e4, attention_scale=dim**-0.5,
        )  # fmt: skip
        bytes_of_layer = page_bytes(one_layer, PAGE_SIZE, self.kv_dtype) * self.pages
        return replace(one_layer, num_layers=max(2, -(-MEMORY // bytes_of_layer)))

    @property
    def sequences(self) -> int:
        return 1 if self.prefill else self.rows

    @property
    def pages(self) -> int:
        return self.sequences * -(-self.context // PAGE_SIZE)

    @property
    def io(self) -> torch.dtype:
        """Of queries and outputs: float32 goes with itself."""
        return torch.float32 if self.kv_dtype == torch.float32 else torch.bfloat16

    @property
    def bytes_read(self) -> float:
        config = self.config
        return page_bytes(config, PAGE_SIZE, self.kv_dtype) / config.num_layers * self.pages

    @property
    def operations(self) -> float:
        config = self.config
        keys = self.rows * (self.context - self.rows / 2) if self.prefill else self.rows * self.context
        return 4.0 * keys * config.num_heads * config.head_dim

    def batch(self) -> Batch:
        ids = np.random.default_rng(0).permutation(self.pages).astype(np.int64)
        start = self.context - (self.rows if self.prefill else 1)
        n = self.sequences
        return Batch(
            token_ids=torch.zeros(self.rows, dtype=torch.int64),
            positions=torch.arange(start, self.context) if self.prefill else torch.full((n,), start),
            sequences=Sequences(
                np.full(n, self.rows // n, dtype=np.int64),
                np.full(n, start, dtype=np.int64),
                np.arange(n + 1, dtype=np.int64) * (self.pages // n),
                ids,
            ),
            sample_rows=torch.zeros(0, dtype=torch.int64),
        )


def decode_cases(shapes: list[str], contexts: list[int], formats: list[torch.dtype]) -> Iterator[Case]:
    """Batches that each read about ``CALL_BYTES``."""
    for shape, kv_dtype, context in product(shapes, formats, contexts):
        one = Case(shape, context, kv_dtype, 1)
        yield replace(one, rows=max(1, min(64, round(CALL_BYTES / one.bytes_read))))


def filled(case: Case, config: ModelConfig) -> KVStorage:
    """Storage with plausible contents: ordinary numbers, and scales of 0.01."""
    storage = KVStorage(config, case.pages, PAGE_SIZE, case.kv_dtype)
    if case.kv_dtype == torch.int8:
        storage.blocks.view(torch.uint8).fill_(0x3C)
    else:
        storage.blocks.fill_(0.01)
    return storage


def in_turn(layers: int, first: int) -> Iterator[int]:
    """All layers again and again, from ``first`` on: no way finds in a cache what another has just read."""
    return cycle([(first + layer) % layers for layer in range(layers)])


def per_layer(plan: AttentionPlan, turns: Iterator[int], q: Tensor) -> Callable[[], object]:
    """Attends to one layer a call."""
    return lambda: plan.attend(next(turns), q)


def per_head(config: ModelConfig, storage: KVStorage, case: Case, kernels: Kernels) -> Callable[[], object]:
    """Reads all keys and values once for each query head of a KV head, like a loop over heads."""
    group = config.num_heads // config.num_kv_heads
    alone = replace(config, num_heads=config.num_kv_heads)
    plan = NativeAttention(alone, storage, case.io, kernels).plan(case.batch())
    q = torch.randn(case.rows, alone.num_heads, config.head_dim).to(case.io)
    turns = in_turn(config.num_layers, 2 * config.num_layers // 3)

    def attend() -> None:
        layer = next(turns)
        for _ in range(group):
            plan.attend(layer, q)

    return attend


def in_turns(calls: list[Callable[[], object]], seconds: float) -> list[float]:
    """Median seconds of each call, all of them called in turn."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    end = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < end or len(times[0]) < 5:
        for call, taken in zip(calls, times, strict=True):
            began = time.perf_counter()
            call()
            taken.append(time.perf_counter() - began)
    return [median(taken) for taken in times]


def quietly(measurement: Callable[[], T]) -> tuple[T, float]:
    """What was measured, and the share of the CPU that others took: again, a few times, if that was much."""
    tries = []
    for _ in range(TRIES):
        meter = LoadMeter()
        result = measurement()
        tries.append((result, meter.read().others))
        if tries[-1][1] <= QUIET:
            break
    return min(tries, key=lambda one: one[1])


def measure(case: Case, kernels: Kernels, machine: Machine, seconds: float) -> str:
    """One row of the table."""
    config = case.config
    with torch.inference_mode():
        storage = filled(case, config)
        q = torch.randn(case.rows, config.num_heads, config.head_dim).to(case.io)
        layers = config.num_layers
        native = NativeAttention(config, storage, case.io, kernels).plan(case.batch())
        gathered = HostAttention(config, storage, case.io).plan(case.batch())
        calls = [
            per_layer(native, in_turn(layers, 0), q),
            per_layer(gathered, in_turn(layers, layers // 3), q),
        ]
        if not case.prefill:
            calls.append(per_head(config, storage, case, kernels))
        (taken, by_torch, *by_head), others = quietly(lambda: in_turns(calls, seconds))
    bound = machine.bound(case.bytes_read, case.operations)
    limit = "reading" if bound == case.bytes_read / machine.bytes_a_second else "arithmetic"
    kind = f"{case.rows} rows prefill" if case.prefill else f"{case.rows} rows"
    return (
        f"| {case.shape} | {str(case.kv_dtype).removeprefix('torch.')} | {case.context} | {kind} | "
        f"{taken * 1e6:.0f} | {case.bytes_read / taken / 1e9:.1f} | {case.operations / taken / 1e9:.0f} | "
        f"{limit} | {bound / taken:.0%} | {by_torch / taken:.1f} | "
        f"{f'{by_head[0] / taken:.2f}' if by_head else '-'} | {others:.0%} |"
    )


def probe(kernels: Kernels) -> Machine:
    """Measure the bounds on the kernels' threads."""
    bandwidth, _ = quietly(lambda: kernels.pool.read_bandwidth(kernels.instruction_set, 1 << 30, 5))
    torch.set_num_threads(kernels.pool.threads)
    left, right = torch.randn(768, 768), torch.randn(768, 768)
    (seconds,), _ = quietly(lambda: in_turns([lambda: left @ right], 0.5))
    return Machine(bandwidth, 2 * 768**3 / seconds)


def main() -> int:
    """Measure and print a table for each number of threads."""
    as_in_the_engine("benchmarks.attention")
    options = _parser().parse_args()
    formats = [getattr(torch, name) for name in options.formats.split(",")]
    contexts = [int(context) for context in options.contexts.split(",")]
    print(f"Machine: {description('torch')}")
    print(f"Repeat: python -m benchmarks.attention {' '.join(sys.argv[1:])}")
    for threads in map(int, options.threads.split(",")):
        kernels = load_kernels(options.cpu_kernels, threads)
        if kernels is None:
            print("there are no native kernels", file=sys.stderr)
            return 1
        machine = probe(kernels)
        print(
            f"\n{threads} threads, {kernels.instruction_set}: reads {machine.bytes_a_second / 1e9:.1f} GB/s, "
            f"float32 product {machine.operations_a_second / 1e9:.0f} GFLOP/s\n\n"
            "| shape | KV | context | batch | us | GB/s | GFLOP/s | bound | share of bound | "
            "torch / native | per-head loop / native | others' CPU |\n" + "|---" * 12 + "|"
        )
        for case in decode_cases(options.shapes.split(","), contexts, formats):
            print(measure(case, kernels, machine, options.seconds), flush=True)
        for shape, kv_dtype in product(options.shapes.split(","), formats):
            for context in (512, 4096):
                case = Case(shape, context, kv_dtype, 512, prefill=True)
                print(measure(case, kernels, machine, options.seconds), flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention", allow_abbrev=False)
    add = parser.add_argument
    add("--threads", default="1,2", help="default: %(default)s")
    add("--shapes", default=",".join(SHAPES), help="default: %(default)s")
    add("--contexts", default="256,1024,8192", help="default: %(default)s")
    add("--formats", default="bfloat16,float32,int8", help="default: %(default)s")
    add("--cpu-kernels", default="auto", help="default: %(default)s")
    add("--seconds", type=float, default=0.4, help="for each way of each case (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())

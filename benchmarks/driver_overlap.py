"""How well native attention on one core hides behind a matrix product on another.

python -m benchmarks.driver_overlap

Both are made to take about as long. Attention is handed to the driver, a whole iteration's layers in one
call; the matrix products run meanwhile in the calling thread, which never waits for it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

from benchmarks.attention import Case, filled, quietly
from benchmarks.machine import as_in_the_engine, description
from engine.attention.native import NativeAttention
from engine.kernels import _native
from engine.kernels.loader import load_kernels

ROUNDS = 15
LAYERS = 16
CASES = (Case("GQA 4", 1024, torch.bfloat16, 8), Case("GQA 3", 512, torch.bfloat16, 16))


def main() -> int:
    """Measure each case alone and together, in turns."""
    as_in_the_engine("benchmarks.driver_overlap")
    print(f"Machine: {description('torch')}\nRepeat: python -m benchmarks.driver_overlap\n")
    torch.set_num_threads(1)
    print(
        "| attention | alone, ms | product alone, ms | together, ms | together / longer alone | others' CPU |"
    )
    print("|---|---|---|---|---|---|")
    for case in CASES:
        print(measure(case), flush=True)
    return 0


def measure(case: Case) -> str:
    """One row of the table: medians of rounds in which all three are measured."""
    kernels = load_kernels("auto", 1)
    if kernels is None:
        raise SystemExit("there are no native kernels")
    config = case.config
    storage = filled(case, config)
    attention = NativeAttention(config, storage, case.io, kernels)
    attention.plan(case.batch())
    queries = torch.randn(LAYERS, case.rows, config.num_heads, config.head_dim).to(case.io)
    outputs = torch.empty_like(queries)
    done = np.zeros(LAYERS, dtype=np.uint32)
    driver = _native.AttentionDriver(20)

    def start() -> int:
        return driver.submit(
            attention.native_plan, first_layer=0, layers=LAYERS, kv=0, kv_stride=0,
            queries=queries.data_ptr(), outputs=outputs.data_ptr(),
            stride=queries.stride(0) * queries.itemsize,
            gates=0, gate_value=0, done=done.ctypes.data, done_value=1, event_fd=-1,
        )  # fmt: skip

    def attend() -> None:
        driver.wait(start() + LAYERS - 1, -1)

    multiply = product_as_long_as(seconds(attend))

    def together() -> None:
        last = start() + LAYERS - 1
        multiply()
        driver.wait(last, -1)

    rounds, others = quietly(
        lambda: [(seconds(attend), seconds(multiply), seconds(together)) for _ in range(ROUNDS)]
    )
    alone, product, both = (median(times) * 1e3 for times in zip(*rounds, strict=True))
    ratio = median(t / max(a, m) for a, m, t in rounds)
    return (
        f"| {case.shape}, {case.rows} rows of {case.context} | {alone:.2f} | {product:.2f} | {both:.2f} | "
        f"{ratio:.2f} | {others:.0%} |"
    )


def product_as_long_as(wanted: float) -> Callable[[], None]:
    """As many products of a decode step's size as take ``wanted`` seconds."""
    rows, weights = torch.randn(16, 1024), torch.randn(1024, 1024)
    once = median(seconds(lambda: rows @ weights) for _ in range(200))
    count = max(1, round(wanted / once))

    def multiply() -> None:
        for _ in range(count):
            torch.mm(rows, weights)

    return multiply


def seconds(call: Callable[[], object]) -> float:
    """That one call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())

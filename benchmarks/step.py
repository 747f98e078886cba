"""Milliseconds of one iteration's layers and logits: the native step and torch's layers, in turns.

python -m benchmarks.step
python -m benchmarks.step --rows 1,16 --ways native-packed,torch-bfloat16 --context 1024

Decode rows all have the same context, in pages of their own; the prefill is one prompt of 512 tokens.
Sampling and scheduling are not in it; ``--whole`` measures whole iterations of an executor beside it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from statistics import median

import torch

from benchmarks.machine import LoadMeter, as_in_the_engine, description
from engine.attention.choice import host_attention
from engine.batch import make_batch
from engine.kernels.loader import Kernels, load_kernels
from engine.kv_storage import KVStorage
from engine.model_loader import load_model
from engine.model_runner import ModelRunner
from engine.models.decoder import DecoderModel
from engine.models.native_matrices import NativeMatrices
from engine.native_runner import NativeRunner
from engine.runner import Runner
from engine.torch_executor import TorchExecutor
from engine.weights.check import open_checkpoint
from engine.weights.checkpoint import Checkpoint
from engine.weights.source import resolve
from scheduler.plan import IterationPlan, SampleSpec, ScheduledSequence
from scheduler.types import SamplingParams, SequenceId

PAGE_SIZE = 16
PREFILL = 512
WAYS = ("native-packed", "native-bfloat16", "torch-bfloat16", "native-float32", "torch-float32")
GREEDY = SampleSpec(
    params=SamplingParams(max_tokens=1000, temperature=0.0, seed=0),
    choice=0,
    output_length=0,
    prompt_length=1,
    history=None,
)


def decode_plan(rows: int, context: int) -> IterationPlan:
    """One more token for each row."""
    pages = context // PAGE_SIZE + 1
    return IterationPlan(
        0,
        tuple(
            ScheduledSequence(
                sequence_id=SequenceId(row),
                token_ids=(1000 + row,),
                start=context,
                page_table=tuple(range(row * pages, (row + 1) * pages)),
                sample=GREEDY,
            )
            for row in range(rows)
        ),
    )


def prefill_plan() -> IterationPlan:
    """One prompt."""
    table = tuple(range(PREFILL // PAGE_SIZE))
    tokens = tuple(range(1000, 1000 + PREFILL))
    whole = ScheduledSequence(
        sequence_id=SequenceId(0), token_ids=tokens, start=0, page_table=table, sample=GREEDY
    )
    return IterationPlan(0, (whole,))


def load(way: str, checkpoint: Checkpoint, kernels: Kernels) -> DecoderModel:
    """The model as one of ``WAYS`` has it."""
    dtype = torch.bfloat16 if way.endswith("bfloat16") else torch.float32
    if way.startswith("torch"):
        return load_model(checkpoint, dtype)
    packed = way == "native-packed"
    return load_model(
        checkpoint, dtype, make_matrices=lambda source: NativeMatrices(source, dtype, kernels, packed=packed)
    )


def runner(way: str, checkpoint: Checkpoint, kernels: Kernels, pages: int) -> Runner:
    """With keys and values in the type that the engine takes by default."""
    model = load(way, checkpoint, kernels)
    kv_dtype = torch.float32 if way.endswith("float32") else torch.bfloat16
    storage = KVStorage(model.config, pages, PAGE_SIZE, kv_dtype)
    storage.blocks.fill_(0.01)
    if way.startswith("native"):
        return NativeRunner(model, storage, kernels)
    return ModelRunner(model, storage, host_attention(model.config, storage, model.dtype, kernels))


def seconds(work: Callable[[], object]) -> float:
    """Of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def medians(works: list[Callable[[], object]], repeats: int) -> list[float]:
    """Milliseconds of each, taken in turns."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats + 2):  # two to warm up
        for own, work in zip(times, works, strict=True):
            own.append(seconds(work))
    return [1e3 * median(own[2:]) for own in times]


def main() -> int:
    """Measure every way and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", allow_abbrev=False)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="default: %(default)s")
    parser.add_argument("--rows", default="1,4,16,32,64", help="default: %(default)s")
    parser.add_argument("--context", type=int, default=192, help="default: %(default)s")
    parser.add_argument("--ways", default=",".join(WAYS), help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: all")
    parser.add_argument("--repeats", type=int, default=15, help="default: %(default)s")
    parser.add_argument("--whole", action="store_true", help="measure whole iterations too")
    options = parser.parse_args()
    as_in_the_engine("benchmarks.step")
    torch.set_num_threads(options.threads)
    kernels = load_kernels("auto", options.threads)
    if kernels is None:
        raise SystemExit("there are no native kernels")
    rows = [int(each) for each in options.rows.split(",")]
    ways = options.ways.split(",")
    pages = max(max(rows) * (options.context // PAGE_SIZE + 1), PREFILL // PAGE_SIZE)
    checkpoint = open_checkpoint(resolve(options.model))
    runners = [runner(way, checkpoint, kernels, pages) for way in ways]
    print(f"Machine: {description('torch')}, {kernels.instruction_set} kernels, {options.threads} threads")
    print(f"Repeat: python -m benchmarks.step {' '.join(sys.argv[1:])}")
    print(f"Medians of {options.repeats} in turns, ms; {options.model}, context {options.context}\n")
    print(f"{'':12s}" + "".join(f"{way:>17s}" for way in ways))
    plans = {f"{each} rows": decode_plan(each, options.context) for each in rows}
    plans[f"prefill {PREFILL}"] = prefill_plan()
    meter = LoadMeter()
    for name, plan in plans.items():
        report(name, plan, runners, options.repeats, options.whole)
    print(f"\nOthers' share of the CPU: {meter.read().others:.0%}")
    return 0


def report(name: str, plan: IterationPlan, runners: list[Runner], repeats: int, whole: bool) -> None:
    """A line of the table, and one of whole iterations."""

    def step(one: Runner) -> Callable[[], object]:
        batch = make_batch(plan.sequences, PAGE_SIZE)
        return lambda: one.run(batch)

    def iteration(one: Runner) -> Callable[[], object]:
        executor = TorchExecutor(one, (0,))

        def work() -> None:
            executor.submit(plan)
            executor.collect()

        return work

    print(
        f"{name:12s}" + "".join(f"{each:17.2f}" for each in medians([step(one) for one in runners], repeats))
    )
    if whole:
        times = medians([iteration(one) for one in runners], repeats)
        print(f"{'  whole':12s}" + "".join(f"{each:17.2f}" for each in times))


if __name__ == "__main__":
    sys.exit(main())

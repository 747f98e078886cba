"""Milliseconds in which the overlap planner chooses, for several states of a machine.

python -m benchmarks.planner --sequences 256
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import median

from benchmarks.machine import LoadMeter, description
from scheduler.overlap_planner import PlanLimits, choose
from scheduler.plan import Overlap
from scheduler.snapshot import HostSequence, PrefillWork, Snapshot
from scheduler.types import SequenceId
from scheduler.wave_assignment import assign_waves
from tests.builders.costs import A10_8B, EMULATED, T4_7B, AnalyticCosts

_MACHINES = (("small accelerator", EMULATED), ("T4, 7B", T4_7B), ("A10, 8B", A10_8B))
_CONTEXTS = (256, 1000, 4000)
_LIMITS = PlanLimits(tpot=0.1, host_tpot=0.5)


def main() -> int:
    """Measure every state and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", allow_abbrev=False)
    parser.add_argument(
        "--sequences", type=int, default=256, help="an eighth on the device; default: %(default)s"
    )
    parser.add_argument("--repeats", type=int, default=101, help="default: %(default)s")
    options = parser.parse_args()
    print(f"Machine: {description('msgspec')}")
    print(f"Repeat: python -m benchmarks.planner {' '.join(sys.argv[1:])}")
    print(f"Medians of {options.repeats}, {options.sequences} sequences\n")
    print("  choose   limits   assign  state and choice")
    meter = LoadMeter()
    for name, costs in _MACHINES:
        for context in _CONTEXTS:
            for prompt in (0, 1500):
                snapshot = _snapshot(options.sequences, context, prompt)
                free, overlap = _choosing(snapshot, costs, PlanLimits(), options.repeats)
                limited, _ = _choosing(snapshot, costs, _LIMITS, options.repeats)
                assigning = _assigning(snapshot, overlap, options.repeats)
                state = f"{name}, {costs.layers} layers, {context} tokens each" + ", a prompt" * bool(prompt)
                times = "  ".join(f"{seconds * 1e3:4.2f} ms" for seconds in (free, limited, assigning))
                print(f"{times}  {state}: {overlap.mode}, {overlap.waves} waves, {overlap.passes} passes")
    print(f"\nOthers' share of the CPU: {meter.read().others:.0%}")
    return 0


def _snapshot(sequences: int, context: int, prompt: int) -> Snapshot:
    device = sequences // 8
    return Snapshot(
        device_rows=device,
        device_tokens=device * context,
        host=tuple(
            HostSequence(SequenceId(row), context - 50 + row * 37 % 101, None)
            for row in range(sequences - device)
        ),
        waves=(),
        prefills=(PrefillWork(prompt, 0, False),) if prompt else (),
        max_batch_tokens=512,
        paused=0,
        previous=None,
    )


def _choosing(
    snapshot: Snapshot, costs: AnalyticCosts, limits: PlanLimits, repeats: int
) -> tuple[float, Overlap]:
    overlap = choose(snapshot, costs, limits)
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        choose(snapshot, costs, limits)
        seconds.append(time.perf_counter() - started)
    return median(seconds), overlap


def _assigning(snapshot: Snapshot, overlap: Overlap, repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        assign_waves(snapshot.host, overlap)
        seconds.append(time.perf_counter() - started)
    return median(seconds)


if __name__ == "__main__":
    sys.exit(main())

"""What overlapping gains: tokens a second of every way to use the CPU beside a small-memory accelerator.

python -m benchmarks.overlap [--rounds N] [--seconds N] [--contexts 257,4001]

The accelerator is emulated and paced (benchmarks/emulation.py): 30 layers of about 1 ms, device pages for 4
of 32 sequences. 32 clients ask again as soon as they are answered. The ways are measured in turns within one
run; medians over the rounds.
"""

from __future__ import annotations

import argparse
import sys
from statistics import median

from benchmarks.emulation import PAGE_SIZE, Emulation, Load, Seen
from benchmarks.machine import LoadMeter, as_in_the_engine, description
from scheduler.learning_planner import LearningPlanner
from scheduler.overlap_planner import PlanLimits
from scheduler.plan import PlanMode

CLIENTS = 32
ON_DEVICE = 4
OUTPUTS = (128, 384, 256)
GROWTH_PAGES = 8
"""Beside its prompt's, for each sequence on the device."""
WAYS: tuple[PlanMode | None, ...] = (
    PlanMode.ACCELERATOR_ONLY,
    PlanMode.ASYMMETRIC_PIPELINE,
    PlanMode.ASYNC_OVERLAP,
    PlanMode.CATCH_UP,
    None,
)
HOST_SEQUENCES = {"large": 40, "small": 12}
"""How many of the longest ones the host's pages hold."""


def main() -> int:
    """Measure and print one table for each context and size of host memory."""
    as_in_the_engine("benchmarks.overlap")
    arguments = _arguments()
    print(f"Machine: {description('torch')}\nRepeat: python -m benchmarks.overlap\n")
    for context in arguments.contexts:
        for size, sequences in HOST_SEQUENCES.items():
            _measure(context, size, sequences, arguments)
    return 0


def _measure(context: int, size: str, sequences: int, arguments: argparse.Namespace) -> None:
    prompt_pages = context // PAGE_SIZE + 1
    longest = -(-(context + max(OUTPUTS)) // PAGE_SIZE)
    emulation = Emulation(
        device_pages=ON_DEVICE * (prompt_pages + GROWTH_PAGES),
        host_pages=sequences * longest,
        slower=arguments.slower,
    )
    load = Load(CLIENTS, context, OUTPUTS)
    planners = {
        way: LearningPlanner(emulation.costs, PlanLimits(tpot=None, host_tpot=None, mode=way)) for way in WAYS
    }
    seen: dict[PlanMode | None, list[tuple[Seen, float]]] = {way: [] for way in WAYS}
    for _round in range(arguments.rounds):
        for way in WAYS:
            meter = LoadMeter()
            on_host = way is not PlanMode.ACCELERATOR_ONLY
            run = emulation.run(load, planners[way], on_host, arguments.seconds / 3, arguments.seconds)
            seen[way].append((run, meter.read().others))
    emulation.close()
    print(f"context {context}, host memory {size} ({sequences} sequences)\n")
    print("| way | tokens/s | / accelerator-only | idle | waiting | prediction off by | others' CPU |")
    print("|---|---|---|---|---|---|---|")
    base = median(run.rate for run, _others in seen[PlanMode.ACCELERATOR_ONLY])
    for way, runs in seen.items():
        print(_row(way, [run for run, _others in runs], max(others for _run, others in runs), base))
    print(f"\nThe planner's choices: {_choices([run for run, _others in seen[None]])}\n", flush=True)


def _row(way: PlanMode | None, runs: list[Seen], others: float, base: float) -> str:
    rate = median(run.rate for run in runs)
    idle = median(run.idle / run.in_iterations for run in runs)
    waited = median(run.waited / run.in_iterations for run in runs)
    errors = [error for run in runs for error in run.errors]
    off = f"{median(errors):.1%}" if errors else ""
    name = "the planner's choice" if way is None else way.value
    return f"| {name} | {rate:.0f} | {rate / base:.2f} | {idle:.1%} | {waited:.2%} | {off} | {others:.0%} |"


def _choices(runs: list[Seen]) -> str:
    total: dict[str, int] = {}
    for run in runs:
        for plan, count in run.plans.items():
            total[plan] = total.get(plan, 0) + count
    most = sorted(total.items(), key=lambda item: -item[1])
    return ", ".join(f"{plan} waves {count} times" for plan, count in most)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="that are watched, after a third of it")
    parser.add_argument(
        "--contexts", type=lambda text: [int(part) for part in text.split(",")], default=[257, 4001]
    )
    parser.add_argument("--slower", type=int, default=1, help="compute the CPU's attention so often")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""What a figure was measured on, and how much of the machine others took meanwhile."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import psutil

from engine.thread_environment import THREAD_ENVIRONMENT


@dataclass(frozen=True, slots=True)
class Load:
    """The company a measurement had."""

    others: float
    """Share of the machine's CPU time taken by processes outside the benchmark, 0 to 1."""
    load_average: float
    """Of the last minute, the benchmark's own processes included."""


class LoadMeter:
    """Measures from its construction to ``read``."""

    def __init__(self, counters: Callable[[], tuple[float, float, float]] | None = None) -> None:
        """``counters`` gives CPU seconds that passed on all cores, were used, and were used by us."""
        self._counters = counters or _cpu_seconds
        self._before = self._counters()

    def read(self) -> Load:
        """The load so far."""
        passed, used, own = (
            after - before for before, after in zip(self._before, self._counters(), strict=True)
        )
        others = (used - own) / passed if passed else 0.0
        return Load(others=min(max(others, 0.0), 1.0), load_average=os.getloadavg()[0])


def as_in_the_engine(module: str) -> None:
    """Start ``module`` again, unless torch's threads wait as they do in the engine's process already."""
    if not THREAD_ENVIRONMENT.keys() <= os.environ.keys():
        command = [sys.executable, "-m", module, *sys.argv[1:]]
        os.execve(sys.executable, command, {**THREAD_ENVIRONMENT, **os.environ})


def description(*packages: str) -> str:
    """Processor, cores, memory, and the versions of Python and ``packages``."""
    memory = psutil.virtual_memory().total / 2**30
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return (
        f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB; "
        f"Python {platform.python_version()}, {versions}"
    )


def _cpu_seconds() -> tuple[float, float, float]:
    """CPU seconds over all cores: passed, used by somebody, used by us.

    Time that the host gave to other virtual machines counts as used.
    """
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    counted_twice = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
    passed = float(sum(times) - counted_twice)
    return passed, passed - idle, own_seconds()


def own_seconds() -> float:
    """CPU time of this process and all it started, ended children included."""
    this = psutil.Process()
    total = 0.0
    for process in [this, *this.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

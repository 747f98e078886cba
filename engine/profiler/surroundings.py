"""What the figures were measured on, and how much of the machine others took meanwhile."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch

from engine.doctor.machine import memory
from engine.memory import GIB

_DISTRIBUTION = "tandem-serve"


class LoadMeter:
    """CPU time of other processes, from its construction to ``others``."""

    def __init__(self, root: Path = Path("/"), own_seconds: Callable[[], float] | None = None) -> None:
        """Where /proc is, and CPU seconds of this process so far; default: this machine's."""
        self._root = root
        self._own_seconds = own_seconds or _own_seconds
        self._before = self._read()

    def others(self) -> float | None:
        """Their share of all CPUs' time, 0 to 1; None where the system doesn't tell."""
        before, after = self._before, self._read()
        if before is None or after is None or after[0] <= before[0]:
            return None
        passed, used, own = (now - then for now, then in zip(after, before, strict=True))
        return min(max((used - own) / passed, 0.0), 1.0)

    def _read(self) -> tuple[float, float, float] | None:
        """CPU seconds that passed on all CPUs, were used by somebody, and by us."""
        try:
            first = (self._root / "proc/stat").read_text().partition("\n")[0].split()
        except OSError:
            return None
        ticks = [int(count) for count in first[1:9]]  # user nice system idle iowait irq softirq steal
        second = os.sysconf("SC_CLK_TCK")
        return sum(ticks) / second, (sum(ticks) - ticks[3] - ticks[4]) / second, self._own_seconds()


def versions() -> dict[str, str]:
    """Of the software that the figures depend on."""
    return {
        "tandem": version(_DISTRIBUTION),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }


def host_description(kernels: str, root: Path = Path("/")) -> str:
    """Processor, threads, memory and attention kernels."""
    total = memory(root).total
    size = "memory unknown" if total is None else f"{total / GIB:.0f} GiB"
    return f"{processor_name(root)}, {torch.get_num_threads()} threads, {size}, {kernels} attention kernels"


def processor_name(root: Path) -> str:
    """The product, or at least the architecture."""
    try:
        lines = (root / "proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system

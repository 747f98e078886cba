"""Facts that Linux tells in files. ``root`` is where /proc, /sys and /dev are: another folder in tests."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import TypeVar

from engine.doctor.facts import Memory, NumaNode, Processor, Unlimited
from engine.memory import free_host_bytes

T = TypeVar("T")


def processor(root: Path, usable: Collection[int]) -> Processor:
    """Counts of CPUs and what limits them; ``usable`` are the CPUs this process may run on."""
    online = _fact(root / "sys/devices/system/cpu/online", cpu_list)
    return Processor(
        threads=len(usable),
        usable_cores=_cores(root, usable),
        online_cpus=None if online is None else len(online),
        online_cores=None if online is None else _cores(root, online),
        quota=cpu_quota(root),
        load_average=_fact(root / "proc/loadavg", lambda text: float(text.split()[0])),
    )


def numa_nodes(root: Path, usable: Collection[int]) -> tuple[NumaNode, ...] | None:
    """The nodes that are online."""
    folder = root / "sys/devices/system/node"
    online = _fact(folder / "online", cpu_list)
    if online is None:
        return None

    def node_facts(node: int) -> NumaNode:
        path = folder / f"node{node}/cpulist"
        cpus = _fact(path, cpu_list) or frozenset()
        return NumaNode(node=node, cpus=_fact(path, str), usable_cpus=len(cpus.intersection(usable)))

    return tuple(node_facts(node) for node in sorted(online))


def memory(root: Path) -> Memory:
    """Sizes and limits of host memory."""
    sizes = _fact(root / "proc/meminfo", _meminfo) or {}
    return Memory(
        total=sizes.get("MemTotal"),
        free=_free(root),
        swap_total=sizes.get("SwapTotal"),
        swap_free=sizes.get("SwapFree"),
        huge_pages=_fact(root / "sys/kernel/mm/transparent_hugepage/enabled", _chosen),
        lock_limit=_fact(root / "proc/self/limits", _lock_limit),
    )


def nvidia_device_files(root: Path) -> tuple[str, ...]:
    """Names of the GPUs in /dev, without the driver's own nvidiactl, nvidia-uvm and the like."""
    return tuple(f"/dev/{path.name}" for path in sorted((root / "dev").glob("nvidia[0-9]*")))


def cpu_quota(root: Path) -> float | Unlimited | None:
    """CPU seconds per second: the least that this process' control group, or one around it, allows."""
    mount = root / "sys/fs/cgroup"
    own = _fact(root / "proc/self/cgroup", _own_group) or PurePosixPath("/")
    groups = accumulate(own.parts[1:], Path.joinpath, initial=mount)
    quotas = [quota for group in groups if (quota := _fact(group / "cpu.max", _quota)) is not None]
    least = min(quotas, default=math.inf)
    if least < math.inf:
        return least
    # The outermost group has no quota and no such file. Version 1 has neither file: then it is not known.
    version_2 = quotas or _fact(mount / "cgroup.controllers", str) is not None
    return "unlimited" if version_2 else None


def cpu_list(text: str) -> frozenset[int]:
    """A set of numbers as the kernel writes it: ``0-3,8``."""
    ranges = [part.partition("-") for part in text.split(",") if part]
    return frozenset(cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1))


def _fact(path: Path, parse: Callable[[str], T]) -> T | None:
    """What a file tells, or None: elsewhere, and in containers, it may be missing or say something else."""
    try:
        return parse(path.read_text().strip())
    except (OSError, ValueError, LookupError):
        return None


def _cores(root: Path, cpus: Collection[int]) -> int | None:
    """How many physical cores the CPUs are; CPUs of one core have the same siblings."""
    folder = root / "sys/devices/system/cpu"
    siblings = {_fact(folder / f"cpu{cpu}/topology/thread_siblings_list", str) for cpu in cpus}
    return None if None in siblings else len(siblings)


def _own_group(text: str) -> PurePosixPath:
    """The process' group in version 2, whose line begins ``0::``."""
    return PurePosixPath(re.findall(r"^0::(/.*)$", text, flags=re.MULTILINE)[0])


def _quota(text: str) -> float:
    limit, period = text.split()
    return math.inf if limit == "max" else int(limit) / int(period)


def _meminfo(text: str) -> dict[str, int]:
    return {
        name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+): +(\d+) kB$", text, flags=re.MULTILINE)
    }


def _free(root: Path) -> int | None:
    try:
        return free_host_bytes(root / "proc", root / "sys/fs/cgroup")
    except (OSError, ValueError):
        return None


def _chosen(text: str) -> str:
    """The one in brackets: ``always [madvise] never``."""
    return text[text.index("[") + 1 : text.index("]")]


def _lock_limit(text: str) -> int | Unlimited:
    """RLIMIT_MEMLOCK out of /proc/self/limits: soft limit, hard limit, unit."""
    soft = re.findall(r"^Max locked memory +(\S+)", text, flags=re.MULTILINE)[0]
    return "unlimited" if soft == "unlimited" else int(soft)

"""How much host memory this process may still take, and how many KV pages that makes."""

from __future__ import annotations

from pathlib import Path

GIB = 1024**3
_SHARE_OF_FREE = 0.25
_MOST_BY_DEFAULT = 8 * GIB


def free_host_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can be taken without swapping: what the kernel estimates, or the container still allows."""
    available = _meminfo_available(proc / "meminfo")
    limit = _read_int(cgroup / "memory.max")
    used = _read_int(cgroup / "memory.current")
    if limit is not None and used is not None:
        reclaimable = _reclaimable(cgroup / "memory.stat")
        available = min(available, max(limit - used + reclaimable, 0))
    return available


def kv_pages(page_bytes: int, pages: int | None, gib: float | None, free_bytes: int) -> int:
    """Pages to allocate: as many as asked for, or those that fit ``gib``, or a share of what is free."""
    if pages is not None:
        return pages
    budget = gib * GIB if gib is not None else min(_SHARE_OF_FREE * free_bytes, _MOST_BY_DEFAULT)
    return max(int(budget // page_bytes), 1)


def _meminfo_available(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise OSError(f"{meminfo} does not tell MemAvailable")


def _reclaimable(stat: Path) -> int:
    """File pages the kernel drops before it lets the container run out of memory."""
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None

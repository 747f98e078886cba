"""Gathers every fact of this machine."""

from __future__ import annotations

import os
from pathlib import Path

from engine.doctor import libraries, machine
from engine.doctor.facts import Facts


def examine(bandwidth_bytes: int, root: Path = Path("/")) -> Facts:
    """All facts; takes a second or two, most of it to read ``bandwidth_bytes`` again and again."""
    usable = _usable_cpus()
    processor = machine.processor(root, usable)  # before the reading, which adds to the load average
    memory = machine.memory(root)
    kernels = libraries.kernels()
    return Facts(
        kernels=kernels,
        processor=processor,
        numa_nodes=machine.numa_nodes(root, usable),
        memory=memory,
        bandwidth=libraries.bandwidth(kernels, processor.threads, bandwidth_bytes, memory.free),
        gpus=libraries.gpus(machine.nvidia_device_files(root)),
        torch=libraries.torch_facts(),
    )


def _usable_cpus() -> set[int]:
    """The CPUs this process may run on; all of them where the system can't tell."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))

"""What is known of the machine. None is unknown: a file that is missing, or not to be read."""

from __future__ import annotations

from typing import Literal

import msgspec

Unlimited = Literal["unlimited"]


class Kernels(msgspec.Struct, frozen=True, kw_only=True):
    """Attention kernels."""

    instruction_sets: tuple[str, ...] | None
    """Fastest first; None without the native library."""
    auto: str
    """What ``--cpu-kernels auto`` takes."""


class Processor(msgspec.Struct, frozen=True, kw_only=True):
    """CPUs as the kernel counts them (a core with two hardware threads is two), and whose time they are."""

    threads: int
    """The CPUs this process may run on, which is how many threads the engine uses by default."""
    usable_cores: int | None
    """Physical cores that these CPUs belong to."""
    online_cpus: int | None
    online_cores: int | None
    quota: float | Unlimited | None
    """CPU time per second that the control group allows."""
    load_average: float | None
    """Threads that ran or wanted to, on average over the last minute."""


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    """CPUs with memory of their own."""

    node: int
    cpus: str | None
    """As the kernel lists them; empty for a node of memory only."""
    usable_cpus: int
    """Those among them that this process may run on."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Host memory in bytes."""

    total: int | None
    free: int | None
    """What can be taken without swapping, or the container still allows."""
    swap_total: int | None
    swap_free: int | None
    huge_pages: str | None
    """Mode of transparent huge pages: always, madvise or never."""
    lock_limit: int | Unlimited | None
    """RLIMIT_MEMLOCK, the soft limit."""


class Bandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes a second that threads read from memory."""

    bytes_read: int
    one_thread: float
    all_threads: float


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU that torch can use."""

    name: str
    memory: int


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs, and what is there to use them."""

    usable: tuple[Gpu, ...]
    device_files: tuple[str, ...]
    """NVIDIA's GPUs in /dev; they may be there without a driver or torch build that can use them."""
    torch_cuda: str | None
    """The CUDA version of this torch; None for a build without."""


class Torch(msgspec.Struct, frozen=True, kw_only=True):
    """The torch that computes everything but attention."""

    version: str
    threads: int
    """Its own default; the engine sets as many as ``Processor.threads``."""
    capabilities: tuple[str, ...]
    """Instructions that matter to matrix products, of those the CPU has."""
    auto_dtype: str
    """What ``--dtype auto`` takes."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The whole machine."""

    kernels: Kernels
    processor: Processor
    numa_nodes: tuple[NumaNode, ...] | None
    memory: Memory
    bandwidth: Bandwidth | None
    """None without the native library, which measures it."""
    gpus: Gpus
    torch: Torch

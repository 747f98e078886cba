"""What would make Tandem faster, from facts alone."""

from __future__ import annotations

from collections.abc import Iterator

from engine.doctor.facts import Facts, Gpus, Memory, NumaNode, Processor
from engine.memory import GIB

_ENOUGH_LOCKED = GIB
"""More than transfers between host and GPU keep in flight."""


def advise(facts: Facts) -> tuple[str, ...]:
    """One sentence for each improvement; none, none."""
    return (
        *_on_kernels(facts.kernels.instruction_sets),
        *_on_threads(facts.processor),
        *_on_load(facts.processor),
        *_on_nodes(facts.numa_nodes or ()),
        *_on_huge_pages(facts.memory.huge_pages),
        *_on_gpus(facts.gpus),
        *_on_locked_memory(facts.memory, facts.gpus),
    )


def _on_kernels(instruction_sets: tuple[str, ...] | None) -> Iterator[str]:
    if instruction_sets is None:
        yield (
            "The native library was not built, so torch computes attention, slower: "
            "install a C++ compiler (g++ or clang) and reinstall Tandem."
        )


def _on_threads(processor: Processor) -> Iterator[str]:
    """At most one advice on ``--threads``: the quota is the harder limit."""
    threads, cores, quota = processor.threads, processor.usable_cores, processor.quota
    if isinstance(quota, float) and quota < threads:
        fitting = max(int(quota), 1)
        instead = f", or tandem serve --threads {fitting}" if fitting < threads else ""
        yield (
            f"The control group allows {quota:g} CPUs' time to {threads} threads, and stops all of them "
            f"when it is used up: raise its quota{instead}."
        )
    elif cores is not None and cores < threads:
        yield (
            f"{threads} threads share {cores} physical cores and get in each other's way: "
            f"try tandem serve --threads {cores}."
        )


def _on_load(processor: Processor) -> Iterator[str]:
    load, cpus = processor.load_average, processor.online_cpus or processor.threads
    if load is not None and load > cpus:
        yield (
            f"The load average is {load:g} on {cpus} CPUs, so others use this machine: "
            "stop them, or leave them cores with fewer --threads."
        )


def _on_nodes(nodes: tuple[NumaNode, ...]) -> Iterator[str]:
    """Nothing for a process that is bound to one node already."""
    used = [node for node in nodes if node.usable_cpus]
    if len(used) > 1:
        best = max(used, key=lambda node: node.usable_cpus).node
        yield (
            f"Threads run on {len(used)} NUMA nodes, and another node's memory is slower: "
            f"bind Tandem to one, numactl --cpunodebind={best} --membind={best} tandem serve."
        )


def _on_huge_pages(mode: str | None) -> Iterator[str]:
    if mode == "never":
        yield (
            "Transparent huge pages are off, so large reads miss the TLB: "
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled."
        )


def _on_gpus(gpus: Gpus) -> Iterator[str]:
    if gpus.usable or not gpus.device_files:
        return
    if gpus.torch_cuda is None:
        yield "This torch has no CUDA and can't use the GPU: install a build with CUDA, see https://pytorch.org."
    else:
        yield (
            f"torch can't use the GPU: install an NVIDIA driver for CUDA {gpus.torch_cuda}, "
            "or give the container access to it."
        )


def _on_locked_memory(memory: Memory, gpus: Gpus) -> Iterator[str]:
    limit = memory.lock_limit
    if gpus.usable and isinstance(limit, int) and limit < _ENOUGH_LOCKED:
        yield (
            f"Only {limit / 2**20:.0f} MiB of memory may be locked, which can keep buffers for the GPU from "
            "being pinned: ulimit -l unlimited, or LimitMEMLOCK=infinity for systemd."
        )

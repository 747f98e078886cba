"""Facts and advice as text for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from engine.doctor.facts import Bandwidth, Facts, Gpus, Memory, NumaNode, Processor, Torch
from engine.memory import GIB

_UNKNOWN = "unknown"
_Rows = Iterator[tuple[str, str]]


def to_json(facts: Facts, advice: Sequence[str]) -> str:
    """One object: the facts under their names, and the advice. Unknown is null."""
    whole = {**msgspec.structs.asdict(facts), "advice": advice}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode()


def to_text(facts: Facts, advice: Sequence[str]) -> str:
    """A line for each fact, then the advice."""
    sets = facts.kernels.instruction_sets
    rows = [
        ("instruction sets", "no native library" if sets is None else f"{', '.join(sets)} (fastest first)"),
        ("--cpu-kernels auto", facts.kernels.auto),
        *_processor(facts.processor),
        *_nodes(facts.numa_nodes),
        *_memory(facts.memory),
        ("memory bandwidth", _bandwidth(facts.bandwidth, facts.processor.threads)),
        *_gpus(facts.gpus),
        *_torch(facts.torch),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:{width}}  {value}" for name, value in rows]
    remarks = [f"* {sentence}" for sentence in advice] or ["nothing to improve"]
    return "\n".join([*lines, "", "What would make Tandem faster:", *remarks])


def _processor(processor: Processor) -> _Rows:
    quota = processor.quota
    yield "threads", f"{processor.threads}, on {_shown(processor.usable_cores)} physical cores"
    yield (
        "CPUs online",
        f"{_shown(processor.online_cpus)}, on {_shown(processor.online_cores)} physical cores",
    )
    yield "CPU quota", f"{quota:g} CPUs" if isinstance(quota, float) else _shown(quota)
    yield "load average", _shown(processor.load_average)


def _nodes(nodes: tuple[NumaNode, ...] | None) -> _Rows:
    if nodes is None:
        yield "NUMA nodes", _UNKNOWN
    for node in nodes or ():
        cpus = "none" if node.cpus == "" else _shown(node.cpus)
        yield f"NUMA node {node.node}", f"CPUs {cpus}; {node.usable_cpus} usable"


def _memory(memory: Memory) -> _Rows:
    yield "memory", f"{_size(memory.total)}, {_size(memory.free)} free"
    yield (
        "swap",
        "none" if memory.swap_total == 0 else f"{_size(memory.swap_total)}, {_size(memory.swap_free)} free",
    )
    yield "huge pages", _shown(memory.huge_pages)
    yield "lockable memory", _size(memory.lock_limit)


def _bandwidth(bandwidth: Bandwidth | None, threads: int) -> str:
    if bandwidth is None:
        return "not measured without the native library"
    one, all_ = (f"{rate / 1e9:.1f} GB/s" for rate in (bandwidth.one_thread, bandwidth.all_threads))
    return f"{one} with one thread, {all_} with {threads} (reading {_size(bandwidth.bytes_read)})"


def _gpus(gpus: Gpus) -> _Rows:
    for gpu in gpus.usable:
        yield "GPU", f"{gpu.name}, {_size(gpu.memory)}"
    if not gpus.usable:
        yield "GPU", f"{', '.join(gpus.device_files)}; torch can't use it" if gpus.device_files else "none"
    yield "torch's CUDA", gpus.torch_cuda or "none"


def _torch(torch: Torch) -> _Rows:
    yield "torch", f"{torch.version}, {torch.threads} threads by default"
    yield "CPU capabilities", ", ".join(torch.capabilities) or "none of interest"
    yield "--dtype auto", torch.auto_dtype


def _shown(value: object) -> str:
    return _UNKNOWN if value is None else str(value)


def _size(size: int | str | None) -> str:
    if not isinstance(size, int):
        return _shown(size)
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.0f} MiB"

"""Facts that torch and the native library know."""

from __future__ import annotations

import torch

from engine.doctor.facts import Bandwidth, Gpu, Gpus, Kernels, Torch
from engine.kernels.loader import SPIN_MICROSECONDS
from engine.model_loader import compute_dtype

_CAPABILITIES = (
    *("amx_bf16", "amx_fp16", "amx_int8", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx512_f", "avx2"),
    *("sve_bf16", "bf16", "i8mm", "sve2", "sve", "neon"),
)
"""CPU capabilities that matter to matrix products, as torch names them on x86 and Arm."""
_PIECE = 2**21
_ROUNDS = 3


def kernels() -> Kernels:
    """What the native library has for this processor."""
    try:
        from engine.kernels import _native
    except ImportError:
        return Kernels(instruction_sets=None, auto="torch")
    available = tuple(_native.instruction_sets())
    return Kernels(instruction_sets=available, auto=available[0])


def bandwidth(kernels: Kernels, threads: int, most: int, free: int | None) -> Bandwidth | None:
    """Read more memory than caches hold, with one thread and with all of them.

    Args:
        kernels: whose fastest loads read it; without the native library nothing is measured.
        threads: all of them.
        most: bytes to read; fewer if that were more than a quarter of what is free.
        free: bytes of memory, if known.
    """
    if kernels.instruction_sets is None:
        return None
    from engine.kernels import _native

    size = max(most if free is None else min(most, free // 4), _PIECE) // _PIECE * _PIECE

    def measure(threads: int) -> float:
        pool = _native.ThreadPool(threads, [], SPIN_MICROSECONDS)
        return pool.read_bandwidth(kernels.auto, size, _ROUNDS)

    one = measure(1)
    return Bandwidth(bytes_read=size, one_thread=one, all_threads=one if threads == 1 else measure(threads))


def gpus(device_files: tuple[str, ...]) -> Gpus:
    """What torch can use, beside what is there."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    properties = [torch.cuda.get_device_properties(index) for index in range(count)]
    return Gpus(
        usable=tuple(Gpu(name=one.name, memory=one.total_memory) for one in properties),
        device_files=device_files,
        torch_cuda=torch.version.cuda,
    )


def torch_facts() -> Torch:
    """The installed torch on this processor."""
    has = torch.cpu.get_capabilities()
    return Torch(
        version=str(torch.__version__),
        threads=torch.get_num_threads(),
        capabilities=tuple(name for name in _CAPABILITIES if has.get(name, False)),
        auto_dtype=str(compute_dtype("auto")).removeprefix("torch."),
    )

"""The native library as the engine sees it: which kernels, on how many threads."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, TypedDict, Unpack

import torch

from engine.model_error import ModelError

if TYPE_CHECKING:
    from engine.kernels import _native

logger = logging.getLogger(__name__)

FORMATS: Mapping[torch.dtype, int] = MappingProxyType(
    {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}
)
"""The library's numbers for types of elements."""
SPIN_MICROSECONDS = 20
"""How long a worker waits awake for the next layer. torch's own threads want the core between two layers."""


class AttentionLayout(TypedDict):
    """See ``_native.AttentionContext``."""

    layers: int
    heads: int
    kv_heads: int
    dim: int
    page_size: int
    kv_format: int
    io_format: int
    scale: float
    softcap: float
    windows: list[int]
    pages: int
    num_pages: int


@dataclass(frozen=True, slots=True)
class Kernels:
    """Kernels of one instruction set with the threads that run them."""

    instruction_set: str
    pool: _native.ThreadPool

    def attention_plan(self, **layout: Unpack[AttentionLayout]) -> _native.AttentionPlan:
        """A plan to be prepared for one iteration after the other.

        Raises:
            ValueError: the kernels can't do this shape.
        """
        from engine.kernels import _native

        return _native.AttentionPlan(_native.AttentionContext(self.pool, self.instruction_set, **layout))

    def batch_sampler(self) -> _native.BatchSampler:
        """What samples rows of logits, with memory of its own."""
        from engine.kernels import _native

        return _native.BatchSampler(self.pool, self.instruction_set)


def load_kernels(choice: str, threads: int) -> Kernels | None:
    """The kernels that the setting ``cpu_kernels`` asks for.

    Args:
        choice: ``auto``, ``torch`` or an instruction set.
        threads: that may run at once, the caller's among them.

    Returns:
        None for torch: it was asked for, or the library was not built, which is warned of.

    Raises:
        ModelError: an instruction set was asked for that is not to be had.
    """
    if choice == "torch":
        return None
    try:
        from engine.kernels import _native
    except ImportError:
        if choice != "auto":
            raise ModelError(f"no {choice} kernels: Tandem was installed without a C++ compiler") from None
        logger.warning("no native kernels, attention is slower: Tandem was installed without a C++ compiler")
        return None
    available = _native.instruction_sets()
    if choice != "auto" and choice not in available:
        raise ModelError(f"no {choice} kernels for this processor; it has {', '.join(available)}")
    pool = _native.ThreadPool(threads, [], SPIN_MICROSECONDS)
    return Kernels(available[0] if choice == "auto" else choice, pool)

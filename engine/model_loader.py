"""From a checkpoint to a model ready to compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from engine.models.decoder import DecoderModel
from engine.models.matrices import Matrices
from engine.models.native_matrices import StoredSource
from engine.models.registry import model_class
from engine.stored_tensor import StoredTensor
from engine.weights.check import check_checkpoint
from engine.weights.checkpoint import Checkpoint

Progress = Callable[[int, int, int, int], None]
"""Called with tensors done, tensors in all, bytes done and bytes in all (in the file)."""

_FAST_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
"""CPU capabilities, as torch names them on x86 and Arm, that multiply bfloat16 natively."""


def compute_dtype(name: Literal["auto", "float32", "bfloat16"]) -> torch.dtype:
    """The type a ``dtype`` setting asks for; ``auto`` is bfloat16 where the CPU multiplies it natively."""
    if name == "auto":
        capabilities = torch.cpu.get_capabilities()
        native = any(capabilities.get(capability, False) for capability in _FAST_BFLOAT16)
        return torch.bfloat16 if native else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def load_model(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    progress: Progress | None = None,
    make_matrices: Callable[[StoredSource], Matrices] | None = None,
) -> DecoderModel:
    """Check the checkpoint against the model's expectations, then read it.

    Args:
        checkpoint: open.
        dtype: compute type.
        progress: called before the first tensor and after each one.
        make_matrices: gives the checkpoint's matrices; default: plain ones of ``dtype``.

    Raises:
        ModelError: the family is not supported, or a tensor is missing, misshapen, unknown or damaged.
    """
    family = model_class(checkpoint.config)
    expected = family.expected_tensors(checkpoint.config)
    check_checkpoint(checkpoint, expected)
    source = _Counted(checkpoint, frozenset(expected), progress)
    with torch.inference_mode():
        matrices = None if make_matrices is None else make_matrices(source)
        return family(checkpoint.config, source, dtype, matrices)


class _Counted:
    """A checkpoint that reports how much of it was loaded."""

    def __init__(self, checkpoint: Checkpoint, names: frozenset[str], progress: Progress | None) -> None:
        self._checkpoint = checkpoint
        self._progress = progress
        self._tensors_total = len(names)
        self._bytes_total = sum(checkpoint.nbytes(name) for name in names)
        self._taken: set[str] = set()
        self._bytes_done = 0
        self._report()

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        tensor = self._checkpoint.load(name, dtype)
        self._take(name)
        return tensor

    def stored(self, name: str) -> StoredTensor | None:
        tensor = self._checkpoint.stored(name)
        if tensor is not None:
            self._take(name)
        return tensor

    def _take(self, name: str) -> None:
        if name not in self._taken:
            self._taken.add(name)
            self._bytes_done += self._checkpoint.nbytes(name)
            self._report()

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(len(self._taken), self._tensors_total, self._bytes_done, self._bytes_total)

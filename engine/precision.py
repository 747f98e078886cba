"""What a model's numbers are kept and computed in, from what was asked for and what the file has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from engine.kernels.loader import Kernels
from engine.kernels.matrices import PACKED_TYPES
from engine.model_error import ModelError
from engine.model_loader import compute_dtype
from engine.models.matrices import Matrices
from engine.models.native_matrices import NativeMatrices, StoredSource
from engine.models.registry import expected_tensors
from engine.stored_tensor import FLOAT_TYPES
from engine.weights.checkpoint import Checkpoint

DType = Literal["auto", "float32", "bfloat16"]
Quantization = Literal["auto", "none", "int8", "int4"]


@dataclass(frozen=True, slots=True)
class Precision:
    """How weights are kept, and in which type the rest is computed."""

    compute: torch.dtype
    packed: bool = False
    """Whether quantised weights stay as the file has them."""
    quantize_to: Literal["int8", "int4"] | None = None
    """What float weights become."""

    def matrices(
        self, kernels: Kernels | None, native_floats: bool = False
    ) -> Callable[[StoredSource], Matrices] | None:
        """What makes the model's matrices; None for torch's.

        Args:
            kernels: that multiply.
            native_floats: have them multiply float weights, too.
        """
        if kernels is None or not (self.packed or self.quantize_to or native_floats):
            return None
        return lambda source: NativeMatrices(
            source, self.compute, kernels, self.quantize_to, packed=self.packed
        )


def choose_precision(
    dtype: DType, quantization: Quantization, checkpoint: Checkpoint, kernels: Kernels | None
) -> Precision:
    """How to load ``checkpoint``. Reads no weights.

    Args:
        dtype: the setting. Beside packed or quantised matrices, ``auto`` is float32.
        quantization: the setting.
        checkpoint: open; it need not be complete.
        kernels: that are to multiply; without them quantised weights are dequantised.

    Raises:
        ModelError: the weights can't be quantised.
    """
    found = _quantized_types(checkpoint)
    if quantization in ("int8", "int4"):
        _refuse(checkpoint, quantization, found, kernels)
        compute = torch.float32 if dtype == "auto" else compute_dtype(dtype)
        return Precision(compute, quantize_to=quantization)
    packed = quantization == dtype == "auto" and kernels is not None and not found.isdisjoint(PACKED_TYPES)
    return Precision(torch.float32 if packed else compute_dtype(dtype), packed)


def _refuse(
    checkpoint: Checkpoint, quantization: str, quantized: frozenset[str], kernels: Kernels | None
) -> None:
    name = checkpoint.config.name
    if quantized:
        raise ModelError(
            f"{name}: quantization {quantization} is for float weights; "
            f"the file's are quantised already ({', '.join(sorted(quantized))})"
        )
    if kernels is None:
        raise ModelError(f"{name}: quantization {quantization} needs native kernels, and there are none")


def _quantized_types(checkpoint: Checkpoint) -> frozenset[str]:
    """Of the matrices that the model takes."""
    expected = expected_tensors(checkpoint.config)
    matrices = [name for name, shape in expected.items() if len(shape) == 2 and name in checkpoint.names]
    return frozenset(checkpoint.type_name(name) for name in matrices) - FLOAT_TYPES.keys()

"""A GGUF file as a Checkpoint: Hugging Face's names and layouts, dequantised on loading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from engine.model_error import ModelError
from engine.models.config import ModelConfig
from engine.stored_tensor import StoredTensor
from engine.weights.dequantize import DEQUANTIZABLE, dequantized
from engine.weights.gguf_config import ROPE_FACTORS_TENSOR, gguf_model_config
from engine.weights.gguf_file import GgufFile, GgufTensor
from engine.weights.gguf_names import Conversion, conversion_of, huggingface_name


class GgufCheckpoint:
    """An open GGUF file, see ``checkpoint.Checkpoint``. No tensor is read before ``load``.

    Tensors that no supported family has keep GGUF's name, so that a check can complain about them.

    Args:
        path: the file.
        name: of the model; default: the file's name without ``.gguf``.

    Raises:
        ModelError: the file is damaged, or its architecture or a tensor's type is not supported.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        self._file = GgufFile(path)
        self._config = gguf_model_config(self._file, name or path.stem)
        self._tensors = self._renamed()
        for huggingface, tensor in self._tensors.items():
            self._check(huggingface, tensor)

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        return self._config

    @property
    def names(self) -> frozenset[str]:
        """Tensor names, like ``model.layers.0.self_attn.q_proj.weight``."""
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape as Hugging Face has it. Reads no data."""
        return self._find(name).shape

    def nbytes(self, name: str) -> int:
        """Bytes of the tensor in the file."""
        return self._find(name).nbytes

    def type_name(self, name: str) -> str:
        """Element type in the file."""
        return self._find(name).type.name

    def load(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """The tensor, dequantised exactly and with llama.cpp's conversion undone, in ``dtype``.

        Raises:
            ModelError: there is no such tensor.
        """
        tensor = self._find(name)
        undo = self._undo(name)
        # What is undone is undone in float32: 1 + w rounded to bfloat16 would lose w.
        values = dequantized(
            self._file.data(tensor), tensor.type, tensor.shape, dtype if undo is None else torch.float32
        )
        return values if undo is None else undo(values).to(dtype)

    def stored(self, name: str) -> StoredTensor | None:
        """The tensor's blocks, and the order of rows that undoes llama.cpp's; None for Gemma's norms.

        Raises:
            ModelError: there is no such tensor.
        """
        tensor = self._find(name)
        heads = self._permuted_heads(name)
        if not heads and self._undo(name) is not None:
            return None
        order = _deinterleaved(torch.arange(tensor.shape[0]), heads) if heads else None
        blocks = np.frombuffer(self._file.data(tensor), dtype=np.uint8)
        return StoredTensor(tensor.type.name, tensor.shape, blocks.ctypes.data, blocks, order)

    def _renamed(self) -> dict[str, GgufTensor]:
        renamed: dict[str, GgufTensor] = {}
        for name, tensor in self._file.tensors.items():
            if name != ROPE_FACTORS_TENSOR:  # part of the configuration
                renamed[huggingface_name(self._config.family, name) or name] = tensor
        return renamed

    def _check(self, name: str, tensor: GgufTensor) -> None:
        if tensor.type.name not in DEQUANTIZABLE:
            raise ModelError(
                f"{self._file.path}: tensor {tensor.name!r} has type {tensor.type.name}, which is not "
                f"supported; supported: {', '.join(sorted(DEQUANTIZABLE))}"
            )
        heads = self._permuted_heads(name)
        if heads and tensor.shape[0] % (2 * heads):
            raise ModelError(
                f"{self._file.path}: tensor {tensor.name!r} {list(tensor.shape)} does not divide "
                f"into {heads} heads"
            )

    def _permuted_heads(self, name: str) -> int:
        """Heads whose rows are interleaved in the file, 0 for a tensor left in order."""
        conversion = conversion_of(self._config.family, name)
        if conversion is Conversion.PERMUTED_Q:
            return self._config.num_heads
        return self._config.num_kv_heads if conversion is Conversion.PERMUTED_K else 0

    def _undo(self, name: str) -> Callable[[torch.Tensor], torch.Tensor] | None:
        heads = self._permuted_heads(name)
        if heads:
            return lambda values: _deinterleaved(values, heads)
        if conversion_of(self._config.family, name) is Conversion.NORM_PLUS_ONE:
            return lambda values: values.sub_(1.0)
        return None

    def _find(self, name: str) -> GgufTensor:
        if name not in self._tensors:
            raise ModelError(f"{self._file.path}: tensor {name!r} is missing")
        return self._tensors[name]


def _deinterleaved(values: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows (pair, half) of each head back to (half, pair), the inverse of llama.cpp's ``permute``."""
    pairs = values.shape[0] // heads // 2
    return values.reshape(heads, pairs, 2, -1).transpose(1, 2).reshape(values.shape)

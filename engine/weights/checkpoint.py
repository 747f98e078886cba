"""What the model loader needs of a checkpoint, whichever file format it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from engine.models.config import ModelConfig
    from engine.stored_tensor import StoredTensor


class Checkpoint(Protocol):
    """A model's configuration and tensors, under Hugging Face's names and layouts.

    Whatever a file format does to a tensor (quantise it, permute q and k for interleaved rope,
    fold +1 into Gemma's norms) is undone by ``load``.
    """

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""

    @property
    def names(self) -> frozenset[str]:
        """Tensor names, like ``model.layers.0.self_attn.q_proj.weight``."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape as Hugging Face has it, [out, in] for a projection. Reads no data."""

    def nbytes(self, name: str) -> int:
        """Bytes of the tensor in the file, for progress."""

    def type_name(self, name: str) -> str:
        """Element type in the file, by GGUF's name. Reads no data."""

    def load(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """The tensor, dequantised exactly, in ``dtype``.

        Raises:
            ModelError: the tensor is missing or its type is not supported.
        """

    def stored(self, name: str) -> StoredTensor | None:
        """The tensor as the file has it; None if its numbers can't be used as they are there.

        Raises:
            ModelError: the tensor is missing.
        """

"""A tensor as its file has it: for those who lay weights out themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

FLOAT_TYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
)
"""The types that are plain numbers, by the names both file formats give them."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Bytes in a mapped file. Nothing is read, and nothing copied, until someone does so."""

    type_name: str
    """GGUF's name: ``F32``, ``BF16``, ``Q4_K`` ..."""
    shape: tuple[int, ...]
    """As Hugging Face has it."""
    address: int
    """Of the first byte; rows follow each other without gaps."""
    owner: object
    """Keeps the address valid."""
    row_order: torch.Tensor | None
    """int64 [rows]: row i of the tensor is the file's row ``row_order[i]``; None where the two agree."""

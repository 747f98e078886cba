"""From token ids to the rows that the first layer begins with."""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from engine.models.layers import HeldWeights, held_tensor


class Embedding(Protocol):
    """[rows] of token ids to [rows, hidden]."""

    @property
    def held(self) -> HeldWeights:
        """The rows, for those who count."""

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Look the rows up."""


class DenseEmbedding:
    """Rows of a plain tensor."""

    def __init__(self, weight: Tensor) -> None:
        """``weight`` is [vocab, hidden]."""
        self.weight = weight

    @property
    def held(self) -> HeldWeights:
        """The rows."""
        return held_tensor(self.weight)

    def __call__(self, token_ids: Tensor) -> Tensor:
        """[rows] of token ids to [rows, hidden]."""
        return F.embedding(token_ids, self.weight)

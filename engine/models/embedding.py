"""From token ids to the rows that the first layer begins with."""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F
from torch import Tensor


class Embedding(Protocol):
    """[rows] of token ids to [rows, hidden]."""

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Look the rows up."""


class DenseEmbedding:
    """Rows of a plain tensor."""

    def __init__(self, weight: Tensor) -> None:
        """``weight`` is [vocab, hidden]."""
        self.weight = weight

    def __call__(self, token_ids: Tensor) -> Tensor:
        """[rows] of token ids to [rows, hidden]."""
        return F.embedding(token_ids, self.weight)

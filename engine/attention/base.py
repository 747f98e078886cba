"""What the model runner needs of whatever computes attention."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from engine.batch import Batch


class AttentionPlan(Protocol):
    """One iteration's attention: indices and masks are ready, every layer reuses them."""

    def append(self, layer: int, kv: Tensor) -> None:
        """Store the rows' keys and values.

        Args:
            layer: counted from 0.
            kv: [rows, 2, kv_heads, head_dim], from ``pre_attention``.
        """

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Each row over its sequence's tokens up to its own, which ``append`` has stored.

        Args:
            layer: counted from 0.
            q: [rows, heads, head_dim].

        Returns:
            [rows, heads * head_dim].
        """


class AttentionBackend(Protocol):
    """Makes plans."""

    def plan(self, batch: Batch) -> AttentionPlan:
        """For the rows of ``batch``, in their order."""

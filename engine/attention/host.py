"""Attention over pages in host memory, in plain torch: the readable reference, and the way without kernels.

Pages are copied together, then attended to densely. Indices and masks are made once an iteration; each layer
costs a copy and one fused attention call for every part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.attention.host_decode import decode_groups
from engine.attention.host_prefill import PrefillPart
from engine.batch import Batch
from engine.kv_storage import KVStorage
from engine.models.config import ModelConfig


class Part(Protocol):
    """Attention of some consecutive rows."""

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """All rows' q [rows, heads, head_dim] to this part's output [its rows, heads * head_dim]."""


class HostAttention:
    """Plans attention over one storage's pages."""

    def __init__(self, config: ModelConfig, storage: KVStorage, dtype: torch.dtype) -> None:
        """``storage`` holds the keys and values of ``config``'s model, which computes in ``dtype``."""
        self._config = config
        self._storage = storage
        self._dtype = dtype
        self._sliding_layers = config.sliding_layers or (False,) * config.num_layers

    def plan(self, batch: Batch) -> HostAttentionPlan:
        """Indices and masks for the rows of ``batch``, once for each kind of layer there is."""
        window = self._config.sliding_window
        parts = {
            sliding: self._parts(batch, window if sliding else None) for sliding in set(self._sliding_layers)
        }
        return HostAttentionPlan(
            self._storage,
            batch.fresh_pages(self._storage.page_size),
            self._storage.token_slots(*batch.slots(self._storage.page_size)),
            tuple(parts[sliding] for sliding in self._sliding_layers),
        )

    def _parts(self, batch: Batch, window: int | None) -> tuple[Part, ...]:
        scale = self._config.attention_scale
        groups = decode_groups(batch.decodes, self._storage, self._dtype, scale, window)
        prefills = (
            PrefillPart(segment, self._storage, self._dtype, scale, window) for segment in batch.prefills
        )
        return (*groups, *prefills)


class HostAttentionPlan:
    """See ``engine.attention.base.AttentionPlan``."""

    def __init__(
        self,
        storage: KVStorage,
        fresh_pages: Tensor,
        slots: tuple[Tensor, Tensor],
        parts: Sequence[Sequence[Part]],
    ) -> None:
        """``slots`` take the rows, ``parts`` are those of each layer, in row order."""
        self._storage = storage
        self._fresh_pages = fresh_pages
        self._slots = slots
        self._parts = parts

    def append(self, layer: int, kv: Tensor) -> None:
        """Store the rows' keys and values, [rows, 2, kv_heads, head_dim]."""
        if layer == 0 and len(self._fresh_pages):
            self._storage.clear(self._fresh_pages)
        self._storage.append(layer, self._slots, kv)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """[rows, heads, head_dim] to [rows, heads * head_dim]."""
        outputs = [part.attend(layer, q) for part in self._parts[layer]]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

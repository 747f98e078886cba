"""A prefill segment: one sequence's chunk against the pages before it and itself."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.batch import PrefillSegment
from engine.kv_storage import KVStorage


class PrefillPart:
    """One segment's attention."""

    def __init__(
        self,
        segment: PrefillSegment,
        storage: KVStorage,
        dtype: torch.dtype,
        scale: float,
        window: int | None,
    ) -> None:
        """Plan the segment.

        Args:
            segment: of the batch.
            storage: where its pages are.
            dtype: compute type.
            scale: multiplies q.k.
            window: tokens a row sees at most, its own included; None for all.
        """
        self._rows = slice(segment.first_row, segment.first_row + segment.num_rows)
        self._num_rows = segment.num_rows
        self._storage = storage
        self._scale = scale
        first_visible = 0 if window is None else max(0, segment.start + 1 - window)
        first_page = first_visible // storage.page_size
        first_key = first_page * storage.page_size
        self._num_keys = segment.end - first_key
        self._indices = torch.from_numpy(storage.block_indices(segment.page_ids[first_page:]).reshape(-1))
        self._gathered = torch.empty(len(self._indices), storage.page_size * storage.dim, dtype=dtype)
        self._mask: Tensor | None = None
        if segment.start > 0 or (window is not None and window < segment.num_rows):
            queries = torch.arange(segment.start, segment.end)[:, None]
            keys = torch.arange(first_key, segment.end)
            hidden = keys > queries if window is None else (keys > queries) | (keys <= queries - window)
            mask = torch.zeros(hidden.shape, dtype=self._gathered.dtype)
            self._mask = mask.masked_fill_(hidden, -math.inf)

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """All rows' q [rows, heads, head_dim] to [the segment's rows, heads * head_dim]."""
        self._storage.gather(layer, self._indices, self._gathered)
        dim = q.shape[-1]
        blocks = self._gathered.view(2, self._storage.kv_heads, 1, -1, dim)[..., : self._num_keys, :]
        queries = q[self._rows].view(self._num_rows, self._storage.kv_heads, -1, dim).permute(1, 2, 0, 3)
        keys, values = blocks.expand(-1, -1, queries.shape[1], -1, -1)
        output = F.scaled_dot_product_attention(
            queries, keys, values, self._mask, is_causal=self._mask is None, scale=self._scale
        )
        return output.permute(2, 0, 1, 3).reshape(self._num_rows, -1)

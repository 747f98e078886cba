"""Decode rows: groups of sequences of like length, each group one computation.

The query heads that share a KV head are the rows of its score matrix, so keys and values are read once
for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from engine.batch import DecodeRows, Indices
from engine.kv_storage import KVStorage

_PADDING_PAGES_ALLOWED = 24
"""In a group. Another group costs about as much time as copying and attending to so many pages."""


class DecodeGroup:
    """Consecutive decode rows, padded to the longest of them."""

    def __init__(
        self, rows: slice, lengths: Indices, first_pages: Indices, tables: Indices, first_visible: Indices,
        storage: KVStorage, dtype: torch.dtype, scale: float,
    ) -> None:  # fmt: skip
        """Plan the group.

        Args:
            rows: of the batch.
            lengths: [n], tokens up to each row's own.
            first_pages: [n], number within its sequence of the first page each row sees.
            tables: [n, pages], ids of the visible pages, padded with any page of the row.
            first_visible: [n], position of the first token each row sees.
            storage: where the pages are.
            dtype: compute type.
            scale: multiplies q.k.
        """
        self._rows = rows
        self._storage = storage
        self._scale = scale
        self._num_rows, num_pages = tables.shape
        self._indices = torch.from_numpy(storage.block_indices(tables).reshape(-1))
        self._gathered = torch.empty(len(self._indices), storage.page_size * storage.dim, dtype=dtype)
        positions = first_pages[:, None] * storage.page_size + np.arange(num_pages * storage.page_size)
        hidden = (positions < first_visible[:, None]) | (positions >= lengths[:, None])
        mask = torch.zeros(hidden.shape, dtype=self._gathered.dtype)
        self._mask = mask.masked_fill_(torch.from_numpy(hidden), -math.inf)[:, None, None, :]

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """All rows' q [rows, heads, head_dim] to [the group's rows, heads * head_dim]."""
        self._storage.gather(layer, self._indices, self._gathered)
        dim = q.shape[-1]
        blocks = self._gathered.view(2, self._storage.kv_heads, self._num_rows, -1, dim)
        keys, values = blocks.transpose(1, 2)
        queries = q[self._rows].view(self._num_rows, keys.shape[1], -1, dim)
        mask = self._mask.expand(*queries.shape[:3], -1)
        output = F.scaled_dot_product_attention(queries, keys, values, mask, scale=self._scale)
        return output.reshape(self._num_rows, -1)


def decode_groups(
    decodes: DecodeRows, storage: KVStorage, dtype: torch.dtype, scale: float, window: int | None
) -> Iterator[DecodeGroup]:
    """Plan all decode rows.

    Args:
        decodes: the batch's.
        storage: where their pages are.
        dtype: compute type.
        scale: multiplies q.k.
        window: tokens a row sees at most, its own included; None for all.
    """
    lengths, page_starts = decodes.lengths, decodes.page_starts[:-1]
    first_visible = np.zeros_like(lengths) if window is None else np.maximum(lengths - window, 0)
    first_pages = first_visible // storage.page_size
    visible_pages = np.diff(decodes.page_starts) - first_pages
    for rows in groups_of_like_size(visible_pages, _PADDING_PAGES_ALLOWED):
        columns = np.arange(visible_pages[rows].max())
        within = np.minimum(columns, visible_pages[rows, None] - 1) + first_pages[rows, None]
        tables = decodes.page_ids[page_starts[rows, None] + within]
        yield DecodeGroup(
            rows, lengths[rows], first_pages[rows], tables, first_visible[rows], storage, dtype, scale
        )


def groups_of_like_size(sizes: Indices, padding_allowed: int) -> Iterator[slice]:
    """Cut ``sizes`` into runs that, padded to their largest, hold at most so much padding each."""
    first, largest, total = 0, 0, 0
    for index, size in enumerate(sizes.tolist()):
        grown = max(largest, size)
        if grown * (index - first + 1) - (total + size) > padding_allowed:
            yield slice(first, index)
            first, grown, total = index, size, 0
        largest, total = grown, total + size
    if first < len(sizes):
        yield slice(first, len(sizes))

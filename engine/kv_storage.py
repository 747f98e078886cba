"""Paged keys and values: one tensor, ``[page][layer][k/v][kv_head][token][dim]`` row-major.

A page is one contiguous piece, a layer of a page too, and so are the tokens of one head in it, called a
*block* here. Every layer's view begins where that layer does, so that one set of indices serves all layers.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.models.config import ModelConfig

Indices = NDArray[np.int64]


def page_bytes(config: ModelConfig, page_size: int, dtype: torch.dtype) -> int:
    """Bytes of one page of ``page_size`` tokens."""
    return config.num_layers * 2 * config.num_kv_heads * page_size * config.head_dim * dtype.itemsize


class KVStorage:
    """Owns the pages of one memory tier."""

    def __init__(self, config: ModelConfig, num_pages: int, page_size: int, dtype: torch.dtype) -> None:
        """Memory is only reserved: the system hands it out as pages are first written.

        Args:
            config: of the model whose keys and values are kept.
            num_pages: page ids are 0 .. num_pages - 1.
            page_size: tokens in a page.
            dtype: compute type of the model.

        Raises:
            ValueError: ``num_pages`` or ``page_size`` is not positive.
        """
        if num_pages < 1 or page_size < 1:
            raise ValueError(f"KV storage needs pages and tokens in them, not {num_pages} of {page_size}")
        layers, heads, dim = config.num_layers, config.num_kv_heads, config.head_dim
        self.page_size = page_size
        self.kv_heads = heads
        self.page_bytes = page_bytes(config, page_size, dtype)
        self.pages = torch.empty(num_pages, layers, 2, heads, page_size, dim, dtype=dtype)
        self._blocks_per_layer = 2 * heads
        self._blocks_per_page = layers * self._blocks_per_layer
        blocks = self.pages.view(-1, page_size * dim)
        tokens = self.pages.view(-1, dim)
        starts = [layer * self._blocks_per_layer for layer in range(layers)]
        self._layer_blocks = tuple(blocks[start:] for start in starts)
        self._layer_tokens = tuple(tokens[start * page_size :] for start in starts)

    @property
    def num_pages(self) -> int:
        """Page ids are 0 .. num_pages - 1."""
        return self.pages.shape[0]

    def block_indices(self, page_ids: Indices) -> Indices:
        """Where ``gather`` finds pages: [2 * kv_heads, *page_ids.shape], keys' heads before values'."""
        blocks = np.arange(self._blocks_per_layer).reshape(-1, *(1,) * page_ids.ndim)
        return blocks + page_ids * self._blocks_per_page

    def token_indices(self, page_ids: Indices, offsets: Indices) -> Indices:
        """Where ``append`` puts rows: [rows, 2 * kv_heads] from [rows] page ids and offsets in them."""
        blocks = page_ids[:, None] * self._blocks_per_page + np.arange(self._blocks_per_layer)
        return blocks * self.page_size + offsets[:, None]

    def new_blocks(self, count: int) -> Tensor:
        """Uninitialised [count, page_size * dim] for ``gather``."""
        return self.pages.new_empty(count, self.page_size * self.pages.shape[-1])

    def append(self, layer: int, indices: Tensor, kv: Tensor) -> None:
        """Write rows.

        Args:
            layer: which layer's.
            indices: flattened ``token_indices`` of the rows.
            kv: [rows, 2, kv_heads, dim].
        """
        self._layer_tokens[layer].index_copy_(0, indices, kv.reshape(-1, kv.shape[-1]))

    def gather(self, layer: int, indices: Tensor, out: Tensor) -> None:
        """Copy blocks.

        Args:
            layer: which layer's.
            indices: flattened ``block_indices``.
            out: [indices, page_size * dim].
        """
        torch.index_select(self._layer_blocks[layer], 0, indices, out=out)

    def clear(self, page_ids: Tensor) -> None:
        """Zero whole pages, given as integers [n].

        Whoever reads a page that is filled only in part masks the rest, but 0 * NaN is NaN: what an
        earlier owner or the allocator left there must be finite.
        """
        self.pages.index_fill_(0, page_ids, 0)

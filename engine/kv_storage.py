"""Paged keys and values: ``[page][layer][k/v][kv_head]`` of *blocks*, row-major.

A block holds a page's tokens of one head, ``[token][dim]``; as int8 it has one float32 scale for each token
after them. A page is one contiguous piece, and a layer of a page too. Every layer's view begins where that
layer does, so that one set of indices serves all layers.
"""

from __future__ import annotations

import contextlib
import math
import mmap

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.models.config import ModelConfig

Indices = NDArray[np.int64]

_SCALE_BYTES = 4
_LARGEST = 127
"""Of an int8 whose range is symmetric."""
_SMALLEST = 1e-36
"""A magnitude that can be divided by."""


def page_bytes(config: ModelConfig, page_size: int, dtype: torch.dtype) -> int:
    """Bytes of one page of ``page_size`` tokens, stored as ``dtype``."""
    return config.num_layers * 2 * config.num_kv_heads * _block_bytes(page_size, config.head_dim, dtype)


def _block_bytes(page_size: int, dim: int, dtype: torch.dtype) -> int:
    return page_size * (dim * dtype.itemsize + (_SCALE_BYTES if dtype == torch.int8 else 0))


class KVStorage:
    """Owns the pages of one memory tier."""

    def __init__(self, config: ModelConfig, num_pages: int, page_size: int, dtype: torch.dtype) -> None:
        """Memory is only reserved: the system hands it out as pages are first written.

        Args:
            config: of the model whose keys and values are kept.
            num_pages: page ids are 0 .. num_pages - 1.
            page_size: tokens in a page.
            dtype: how they are kept: a float type or int8.

        Raises:
            ValueError: ``num_pages`` or ``page_size`` is not positive.
            MemoryError: so much can't be reserved.
        """
        if num_pages < 1 or page_size < 1:
            raise ValueError(f"KV storage needs pages and tokens in them, not {num_pages} of {page_size}")
        layers, heads, dim = config.num_layers, config.num_kv_heads, config.head_dim
        self.dtype = dtype
        self.page_size = page_size
        self.num_layers = layers
        self.kv_heads = heads
        self.dim = dim
        self._blocks_per_layer = 2 * heads
        self._blocks_per_page = layers * self._blocks_per_layer
        width = _block_bytes(page_size, dim, dtype) // dtype.itemsize
        self.blocks = _reserve((num_pages * self._blocks_per_page, width), dtype)
        """[pages * layers * 2 * kv_heads, elements of a block]."""
        starts = [layer * self._blocks_per_layer for layer in range(layers)]
        self._layers = tuple(self.blocks[start:] for start in starts)

    @property
    def num_pages(self) -> int:
        """Page ids are 0 .. num_pages - 1."""
        return len(self.blocks) // self._blocks_per_page

    @property
    def tokens(self) -> Tensor:
        """A view of what is stored, without scales: [pages, layers, 2, kv_heads, page_size, dim]."""
        shape = (self.num_pages, self.num_layers, 2, self.kv_heads, self.page_size, self.dim)
        return self._values(self.blocks).view(shape)

    def block_indices(self, page_ids: Indices) -> Indices:
        """Where ``gather`` finds pages: [2 * kv_heads, *page_ids.shape], keys' heads before values'."""
        blocks = np.arange(self._blocks_per_layer).reshape(-1, *(1,) * page_ids.ndim)
        return blocks + page_ids * self._blocks_per_page

    def token_slots(self, page_ids: Indices, offsets: Indices) -> tuple[Tensor, Tensor]:
        """Where ``append`` puts rows, from [rows] page ids and offsets in them: blocks, places in those."""
        blocks = page_ids[:, None] * self._blocks_per_page + np.arange(self._blocks_per_layer)
        places = np.repeat(offsets, self._blocks_per_layer)
        return torch.from_numpy(blocks.reshape(-1)), torch.from_numpy(places)

    def append(self, layer: int, slots: tuple[Tensor, Tensor], kv: Tensor) -> None:
        """Write rows.

        Args:
            layer: which layer's.
            slots: ``token_slots`` of the rows.
            kv: [rows, 2, kv_heads, dim].
        """
        rows = kv.reshape(-1, self.dim)
        stored = self._layers[layer]
        if self.dtype == torch.int8:
            rows, scales = _quantise(rows)
            self._scales(stored)[slots] = scales
        self._values(stored)[slots] = rows.to(self.dtype)

    def gather(self, layer: int, indices: Tensor, out: Tensor) -> None:
        """Copy blocks, as floats.

        Args:
            layer: which layer's.
            indices: flattened ``block_indices``.
            out: [indices, page_size * dim], of the type the model computes in.
        """
        stored = self._layers[layer]
        if out.dtype == self.dtype:
            torch.index_select(stored, 0, indices, out=out)
            return
        blocks = stored.index_select(0, indices)
        if self.dtype != torch.int8:
            out.copy_(blocks)
            return
        values = self._values(blocks)
        out.view_as(values).copy_(values * self._scales(blocks)[..., None])

    def clear(self, page_ids: Tensor) -> None:
        """Zero whole pages, given as integers [n].

        Attention that masks what lies beyond a sequence's end multiplies it with 0, and 0 * NaN is NaN: what
        an earlier owner or the allocator left there must be finite.
        """
        self.blocks.view(self.num_pages, -1).index_fill_(0, page_ids, 0)

    def _values(self, blocks: Tensor) -> Tensor:
        """What blocks hold but for scales, [blocks, page_size, dim]."""
        return blocks[:, : self.page_size * self.dim].view(-1, self.page_size, self.dim)

    def _scales(self, blocks: Tensor) -> Tensor:
        """The scales in int8 blocks, [blocks, page_size]."""
        return blocks[:, self.page_size * self.dim :].view(torch.float32)


def _reserve(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Zeros, in huge pages where the system has them.

    Paged KV is read in small pieces all over, and with small pages most of them cost an address translation.
    """
    try:
        memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(str(error)) from error
    with contextlib.suppress(OSError, AttributeError):  # not Linux, or built without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _quantise(rows: Tensor) -> tuple[Tensor, Tensor]:
    """int8 rows [n, dim] and their scales [n]: the largest magnitude of a row becomes 127."""
    rows = rows.float()
    largest = rows.abs().amax(-1)
    largest = torch.where(largest < _SMALLEST, 0, largest)
    inverse = torch.where(largest > 0, torch.full_like(largest, _LARGEST) / largest, 0)
    return (rows * inverse[:, None]).round().to(torch.int8), largest / _LARGEST

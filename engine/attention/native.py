"""Attention over pages in host memory, by the native kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.batch import Batch
from engine.kernels.loader import FORMATS, Kernels
from engine.kv_storage import KVStorage
from engine.models.config import ModelConfig

if TYPE_CHECKING:
    from engine.kernels import _native


class NativeAttention:
    """Plans attention over one storage's pages. One plan at a time: making the next one ends the last."""

    def __init__(self, config: ModelConfig, storage: KVStorage, dtype: torch.dtype, kernels: Kernels) -> None:
        """``storage`` holds the keys and values of ``config``'s model, which computes in ``dtype``."""
        self._storage = storage  # keeps the pages alive
        self._width = config.num_heads * config.head_dim
        sliding = config.sliding_layers or (False,) * config.num_layers
        window = config.sliding_window or 0
        self.native_plan = kernels.attention_plan(
            layers=config.num_layers,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            dim=config.head_dim,
            page_size=storage.page_size,
            kv_format=FORMATS[storage.dtype],
            io_format=FORMATS[dtype],
            scale=config.attention_scale,
            softcap=0.0,
            windows=[window if slides else 0 for slides in sliding],
            pages=storage.blocks.data_ptr(),
            num_pages=storage.num_pages,
        )

    def plan(self, batch: Batch) -> NativeAttentionPlan:
        """Cut the work of ``batch`` into units, once for all layers."""
        each = batch.sequences
        self.native_plan.prepare(
            len(each.rows),
            each.rows.ctypes.data,
            each.starts.ctypes.data,
            each.page_starts.ctypes.data,
            each.page_ids.ctypes.data,
        )
        return NativeAttentionPlan(self.native_plan, len(batch.token_ids), self._width)


class NativeAttentionPlan:
    """See ``engine.attention.base.AttentionPlan``."""

    def __init__(self, plan: _native.AttentionPlan, rows: int, width: int) -> None:
        """``plan`` is prepared for ``rows`` rows; ``width`` is heads * head_dim."""
        self.native_plan = plan
        self._shape = (rows, width)

    def append(self, layer: int, kv: Tensor) -> None:
        """Store the rows' keys and values, [rows, 2, kv_heads, head_dim]."""
        kv = kv.contiguous()
        self.native_plan.append(layer, kv.data_ptr())

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """[rows, heads, head_dim] to [rows, heads * head_dim]."""
        q = q.contiguous()
        output = torch.empty(self._shape, dtype=q.dtype)
        self.native_plan.attend(layer, q.data_ptr(), output.data_ptr())
        return output

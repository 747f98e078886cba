"""Times of one layer's attention on the accelerator: decode, and a prompt's chunk."""

from __future__ import annotations

from functools import partial

import torch

from engine.attention.base import AttentionBackend
from engine.batch import Batch
from engine.profiler.device_timer import DeviceTimer
from engine.profiler.grid import shared_out
from engine.profiler.kv_pages import KVPages
from engine.profiler.session import Point, Visit
from scheduler.work import Stage, Work


class DeviceAttention:
    """Makes points over one set of pages."""

    def __init__(
        self, pages: KVPages, dtype: torch.dtype, backend: AttentionBackend, timer: DeviceTimer
    ) -> None:
        """``backend`` attends over the pages, for a model that computes in ``dtype``."""
        self._pages = pages
        self._dtype = dtype
        self._backend = backend
        self._timer = timer

    def decode(self, rows: int, tokens: int) -> Point:
        """``rows`` that attend to ``tokens`` in total."""
        sequences = [(length - 1, 1) for length in shared_out(tokens, rows)]
        work = Work(Stage.DEVICE_DECODE, rows, tokens)
        return lambda: self._visit(self._pages.batch(sequences), work)

    def prefill(self, rows: int, context: int) -> Point:
        """``rows`` new tokens after ``context``."""
        work = Work(Stage.DEVICE_PREFILL, rows, context)
        return lambda: self._visit(self._pages.batch([(context, rows)]), work)

    def _visit(self, batch: Batch, work: Work) -> Visit:
        config, rows = self._pages.config, len(batch.token_ids)
        q = torch.randn(rows, config.num_heads, config.head_dim).to(self._dtype)
        kv = torch.randn(rows, 2, config.num_kv_heads, config.head_dim).to(self._dtype)
        plan = self._backend.plan(batch)

        def attend(layer: int) -> None:
            plan.append(layer, kv)
            plan.attend(layer, q)

        def once() -> float:
            compute = self._timer.device.compute
            return sum(
                share * self._timer.seconds(compute, partial(attend, layer), work)
                for layer, share in self._pages.next_layers()
            )

        return once

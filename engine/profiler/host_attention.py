"""Times of one layer's decode attention on the CPU, computed as the executor has it computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from engine.attention.base import AttentionBackend, AttentionPlan
from engine.attention.choice import host_attention
from engine.attention.native import NativeAttention, NativeAttentionPlan
from engine.clock import MonotonicClock
from engine.kernels.loader import SPIN_MICROSECONDS, Kernels
from engine.memory import free_host_bytes
from engine.models.config import ModelConfig
from engine.profiler.grid import QUICK_ROWS, QUICK_TOKENS, shared_out, up_to
from engine.profiler.kv_pages import KVPages, bytes_of_token
from engine.profiler.session import Point, Session, Visit
from scheduler.clock import Clock
from scheduler.profile import AttentionTimes

if TYPE_CHECKING:
    from engine.kernels import _native

QUICK_MEMORY = 2**28
"""Bytes for keys and values."""
_WAIT_MICROSECONDS = 100_000


def measure_host_attention(
    config: ModelConfig,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    page_size: int,
    kernels: Kernels | None,
    budget_seconds: float,
    clock: Clock | None = None,
) -> AttentionTimes:
    """A small table, for the engine's start.

    Args:
        config: of the model.
        dtype: it computes in.
        kv_dtype: keys and values are kept in.
        page_size: tokens in a page.
        kernels: None for torch.
        budget_seconds: about how long it may take.
        clock: default: the real one.
    """
    clock = clock or MonotonicClock()
    began = clock.now()
    memory = min(free_host_bytes() // 4, QUICK_MEMORY)
    tokens = up_to(QUICK_TOKENS, memory // (2 * bytes_of_token(config, page_size, kv_dtype)))
    pages = KVPages(config, page_size, kv_dtype, tokens=tokens[-1], sequences=QUICK_ROWS[-1], memory=memory)
    session = Session(budget_seconds - (clock.now() - began), clock, lambda _title, _done: None)
    return host_attention_table(pages, dtype, kernels, session, 1.0, QUICK_ROWS, tokens)


def host_attention_table(
    pages: KVPages,
    dtype: torch.dtype,
    kernels: Kernels | None,
    session: Session,
    share: float,
    rows: tuple[int, ...],
    tokens: tuple[int, ...],
) -> AttentionTimes:
    """Times over ``rows`` and ``tokens``, for a model that computes in ``dtype``.

    Args:
        pages: with room for the largest batch.
        dtype: see above.
        kernels: None for torch.
        session: measures.
        share: of its time.
        rows: at most the first of tokens.
        tokens: that all rows attend to together.
    """
    work = _HostWork(pages, dtype, host_attention(pages.config, pages.storage, dtype, kernels), session.clock)
    return session.over_both("attention on the CPU", share, rows, tokens, work.decode)


class _HostWork:
    """Makes points over one set of pages. Native kernels run on a driver's thread, as while serving."""

    def __init__(self, pages: KVPages, dtype: torch.dtype, backend: AttentionBackend, clock: Clock) -> None:
        self._pages = pages
        self._dtype = dtype
        self._backend = backend
        self._clock = clock
        self._driver: _native.AttentionDriver | None = None
        if isinstance(backend, NativeAttention):
            from engine.kernels import _native

            self._driver = _native.AttentionDriver(SPIN_MICROSECONDS)

    def decode(self, rows: int, tokens: int) -> Point:
        """``rows`` that attend to ``tokens`` in total."""
        config, dtype = self._pages.config, self._dtype
        sequences = [(length - 1, 1) for length in shared_out(tokens, rows)]

        def prepare() -> Visit:
            plan = self._backend.plan(self._pages.batch(sequences))
            q = torch.randn(rows, config.num_heads, config.head_dim).to(dtype)
            kv = torch.randn(rows, 2, config.num_kv_heads, config.head_dim).to(dtype)
            return lambda: sum(
                share * self._seconds(plan, layer, q, kv) for layer, share in self._pages.next_layers()
            )

        return prepare

    def _seconds(self, plan: AttentionPlan, layer: int, q: Tensor, kv: Tensor) -> float:
        began = self._clock.now()
        if self._driver is not None and isinstance(plan, NativeAttentionPlan):
            output = torch.empty(len(q), q[0].numel(), dtype=q.dtype)
            self._drive(self._driver, plan, layer, q, kv, output)
        else:
            with torch.inference_mode():
                plan.append(layer, kv)
                plan.attend(layer, q)
        return self._clock.now() - began

    def _drive(
        self,
        driver: _native.AttentionDriver,
        plan: NativeAttentionPlan,
        layer: int,
        q: Tensor,
        kv: Tensor,
        output: Tensor,
    ) -> None:
        ticket = driver.submit(
            plan.native_plan,
            first_layer=layer,
            layers=1,
            kv=kv.data_ptr(),
            kv_stride=0,
            queries=q.data_ptr(),
            outputs=output.data_ptr(),
            stride=0,
            gates=0,
            gate_value=0,
            done=0,
            done_value=0,
            event_fd=-1,
        )
        while not driver.wait(ticket, _WAIT_MICROSECONDS):
            pass

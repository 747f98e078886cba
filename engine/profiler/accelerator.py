"""Measures the accelerator's side of a profile."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import torch

from engine.attention.choice import host_attention
from engine.devices.base import Device
from engine.kernels.loader import Kernels
from engine.models.decoder import DecoderModel
from engine.profiler.dense import DenseWork
from engine.profiler.device_attention import DeviceAttention
from engine.profiler.device_timer import DeviceTimer, copy_point, copy_times, launch_point
from engine.profiler.grid import Grid
from engine.profiler.kv_pages import KVPages
from engine.profiler.session import Session, rounded
from scheduler.profile import AcceleratorTimes, AttentionTimes, CopyTimes, RowTimes
from scheduler.work import Stage

OVERHEAD = 2e-3
"""Of an iteration beside its operations: not measured."""
_LARGE_COPY = 2**25


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How a session's time is divided."""

    dense: float
    entry: float
    head: float
    decode: float
    prefill: float
    copies: float
    launches: float


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A device without other work, the model on it, and the kernels of its attention (None for torch)."""

    device: Device
    model: DecoderModel
    kernels: Kernels | None


def accelerator_times(
    accelerator: Accelerator, pages: KVPages, grid: Grid, session: Session, shares: Shares
) -> AcceleratorTimes:
    """Measure all tables at the points of ``grid``, over ``pages`` with room for the largest batch."""
    timer = DeviceTimer(accelerator.device)
    work = DenseWork(accelerator.model, timer)
    with torch.inference_mode():
        dense = session.over_rows("dense work", shares.dense, grid.rows, work.dense)
        entry = session.over_rows("work before attention", shares.entry, grid.entry_rows, work.entry)
        head = session.over_rows("head", shares.head, grid.head_rows, work.head)
        decode, prefill = _attention(accelerator, pages, grid, session, shares, timer)
        download, upload = _copies(accelerator.model, timer, session, shares.copies)
        (launch,) = session.measure("launches", shares.launches, [launch_point(timer, session.clock)])
    return AcceleratorTimes(
        dense=dense,
        entry_share=entry_share(entry, dense),
        head=head,
        decode=decode,
        prefill=prefill,
        host_prefill=prefill,  # where the CPU stands in, pages of both tiers are in the same memory
        download=download,
        upload=upload,
        launch=rounded(launch),
        overhead=OVERHEAD,
    )


def entry_share(entry: RowTimes, dense: RowTimes) -> float:
    """Part of a layer's dense time that comes before its attention: the median over rows in both tables."""
    whole = dict(zip(dense.rows, dense.seconds, strict=True))
    shares = [
        seconds / whole[rows]
        for rows, seconds in zip(entry.rows, entry.seconds, strict=True)
        if whole.get(rows, 0.0) > 0.0
    ]
    return rounded(min(median(shares), 1.0)) if shares else 0.0


def _attention(
    accelerator: Accelerator,
    pages: KVPages,
    grid: Grid,
    session: Session,
    shares: Shares,
    timer: DeviceTimer,
) -> tuple[AttentionTimes, AttentionTimes]:
    """Decode and prefill."""
    dtype = accelerator.model.dtype
    backend = host_attention(pages.config, pages.storage, dtype, accelerator.kernels)
    attention = DeviceAttention(pages, dtype, backend, timer)
    return (
        session.over_both(
            "decode attention", shares.decode, grid.decode_rows, grid.decode_tokens, attention.decode
        ),
        session.over_both(
            "prefill attention", shares.prefill, grid.prefill_rows, grid.contexts, attention.prefill
        ),
    )


def _copies(
    model: DecoderModel, timer: DeviceTimer, session: Session, share: float
) -> tuple[CopyTimes, CopyTimes]:
    """Down and up: one row's q, k and v, and many megabytes."""
    config, size = model.config, model.dtype.itemsize
    small = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim * size
    stages = (Stage.DOWNLOAD, Stage.UPLOAD)
    points = [copy_point(timer, stage, each) for stage in stages for each in (small, _LARGE_COPY)]
    down, much_down, up, much_up = session.measure("copies", share, points)
    return (
        _rounded(copy_times(small, down, _LARGE_COPY, much_down)),
        _rounded(copy_times(small, up, _LARGE_COPY, much_up)),
    )


def _rounded(times: CopyTimes) -> CopyTimes:
    return CopyTimes(latency=rounded(times.latency), bytes_per_second=rounded(times.bytes_per_second))

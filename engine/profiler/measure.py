"""Measures a whole profile."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.devices.base import Device, DeviceFacts
from engine.kernels.loader import Kernels
from engine.models.decoder import DecoderModel
from engine.profiler.accelerator import OVERHEAD, Accelerator, Shares, accelerator_times
from engine.profiler.grid import make_grid
from engine.profiler.host_attention import host_attention_table
from engine.profiler.kv_pages import KVPages, bytes_of_token
from engine.profiler.session import Progress, Session, rounded
from engine.profiler.shape import model_shape
from engine.profiler.surroundings import LoadMeter, host_description, versions
from scheduler.clock import Clock
from scheduler.profile import FORMAT, Profile, Provenance

_SHARES = Shares(dense=0.25, entry=0.05, head=0.1, decode=0.15, prefill=0.25, copies=0.04, launches=0.01)
_HOST_SHARE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is profiled."""

    model: DecoderModel
    device: Device
    """Without other work."""
    kernels: Kernels | None
    """Of attention, on either side; None for torch."""
    page_size: int
    kv_dtype: torch.dtype
    max_rows: int
    """Computed in one iteration."""
    memory: int
    """Bytes for keys and values."""


def measure_profile(
    target: Target, *, seconds: float, date: str, clock: Clock, progress: Progress
) -> Profile:
    """Measure every table.

    Args:
        target: what is profiled.
        seconds: about how long it may take.
        date: of today, ISO 8601.
        clock: the real one.
        progress: hears how far it is.
    """
    load, began = LoadMeter(), clock.now()
    progress("keys and values", 0.0)
    model, config = target.model, target.model.config
    # Two layers at least, so that none is attended to twice in turn.
    token_bytes = 2 * bytes_of_token(config, target.page_size, target.kv_dtype)
    grid = make_grid(target.max_rows, config.context_length, target.memory // token_bytes)
    pages = KVPages(
        config,
        target.page_size,
        target.kv_dtype,
        tokens=grid.most_tokens,
        sequences=grid.most_sequences,
        memory=target.memory,
    )
    session = Session(seconds - (clock.now() - began), clock, progress)
    accelerator = Accelerator(target.device, model, target.kernels)
    times = accelerator_times(accelerator, pages, grid, session, _SHARES)
    host = host_attention_table(
        pages, model.dtype, target.kernels, session, _HOST_SHARE, grid.decode_rows, grid.decode_tokens
    )
    return Profile(
        format=FORMAT,
        provenance=stand_in_provenance(
            target.device.facts, target.kernels, session.spread, date, load.others()
        ),
        model=model_shape(model, pages.storage),
        accelerator=times,
        host_attention=host,
    )


def stand_in_provenance(
    device: DeviceFacts, kernels: Kernels | None, spread: float, date: str, others: float | None
) -> Provenance:
    """Of times measured where the CPU stands in for the accelerator.

    Args:
        device: that was measured.
        kernels: of attention.
        spread: of the measurements.
        date: of today, ISO 8601.
        others: share of all CPU time that other processes took.
    """
    found = "can't be told" if others is None else f"was {others:.0%}"
    return Provenance(
        source="measured",
        date=date,
        accelerator=f"none: the CPU stands in for it (device {device.kind}, {device.name})",
        host=host_description("torch" if kernels is None else kernels.instruction_set),
        versions=versions(),
        spread=rounded(spread),
        assumptions=(
            "The CPU stands in for the accelerator: both sides share its cores and its memory, and copies go "
            "from memory to memory. Each time was measured while nothing else of the profiler ran.",
            "Prefill over host pages takes what it takes over device pages: both are in the same memory.",
            f"An iteration takes {OVERHEAD * 1e3:.0f} ms beside its operations (assumed; corrected from "
            "measured iterations while serving).",
            "Hidden states, queries, keys and values are random numbers.",
            f"Other processes' share of all CPU time during the measurement {found}.",
        ),
    )

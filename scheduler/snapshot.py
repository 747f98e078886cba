"""What the overlap planner knows of the state: numbers only."""

from __future__ import annotations

import msgspec

from scheduler.plan import Overlap, WaveProgress
from scheduler.types import SequenceId


class HostSequence(msgspec.Struct, frozen=True, gc=False):
    """A host row."""

    sequence_id: SequenceId
    tokens: int
    """It attends to, its own included."""
    wave: int | None
    """It is in; None before its first token there."""


class PrefillWork(msgspec.Struct, frozen=True, gc=False):
    """A prompt that is being computed."""

    tokens: int
    """Still to be computed."""
    context: int
    """Computed already."""
    on_host: bool
    """Whether its pages are in host memory."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """State before an iteration."""

    device_rows: int
    device_tokens: int
    """They attend to, in total."""
    host: tuple[HostSequence, ...]
    waves: tuple[WaveProgress, ...]
    """Where the executor last saw them."""
    prefills: tuple[PrefillWork, ...]
    """In the order they are served."""
    max_batch_tokens: int
    paused: int
    """Iterations in a row in which the host rows have paused."""
    previous: Overlap | None

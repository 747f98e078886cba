"""What an operation has to do, in the numbers its time depends on.

The cost model gives times for it, the emulated device takes those times, calibration compares them with
measured ones: all three speak of work in these terms.
"""

from __future__ import annotations

import enum

import msgspec


class Stage(enum.StrEnum):
    """Kinds of work that are timed apart."""

    DENSE = "dense"
    """From one layer's attention to the next one's, for ``rows`` rows."""
    ENTRY = "entry"
    """The first layer up to its attention, embedding included, for ``rows`` rows."""
    EXIT = "exit"
    """The last layer from its attention on, for ``rows`` rows. Entry and exit together are one layer."""
    HEAD = "head"
    """Last norm and vocabulary projection, for ``rows`` rows."""
    DEVICE_DECODE = "device_decode"
    """One layer's decode attention on the accelerator, ``rows`` rows over ``tokens`` in total."""
    DEVICE_PREFILL = "device_prefill"
    """One layer's attention of one chunk on the accelerator: ``rows`` new tokens after ``tokens``."""
    HOST_PREFILL = "host_prefill"
    """The same over pages in host memory, which the accelerator reads and writes across the bus."""
    HOST_ATTENTION = "host_attention"
    """One layer's decode attention on the CPU, ``rows`` rows over ``tokens`` in total."""
    DOWNLOAD = "download"
    """``bytes`` from the accelerator to the host."""
    UPLOAD = "upload"
    """``bytes`` from the host to the accelerator."""


class Work(msgspec.Struct, frozen=True, gc=False):
    """One operation's part of a stage."""

    stage: Stage
    rows: int = 0
    tokens: int = 0
    bytes: int = 0

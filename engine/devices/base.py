"""What the executor needs of an accelerator.

CUDA's model: operations of one stream run in order, those of different streams in any order that events
allow. ``launch`` only queues. The host learns what has happened by asking events; the doorbell wakes it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from scheduler.work import Stage, Work

Resource = Hashable
"""What operations of different streams share, by name: a ``Buffer``, or a page as (tier, number)."""


class DeviceError(Exception):
    """An operation failed, its stream has stopped; or the device was closed."""


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a device once it has been opened."""

    kind: str
    """What ``make_device`` was asked for."""
    name: str
    """For people: a product, say."""
    memory_bytes: int | None
    """What fits on it; None where it has no memory of its own, and pages are limited by settings alone."""


class Buffer:
    """Tensors that one operation makes and others use.

    The value is set when the operation is launched (CUDA: with contents still to come) or run (emulation), so
    only operations touch it, or the host after it has seen their event.
    """

    __slots__ = ("_value", "name")

    def __init__(self, name: str, value: tuple[Tensor, ...] = ()) -> None:
        self.name = name
        self._value = value

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def set(self, *tensors: Tensor) -> None:
        """Replace what is in it."""
        self._value = tensors

    def get(self) -> tuple[Tensor, ...]:
        """What was last set."""
        return self._value


class Event(Protocol):
    """A point in a stream."""

    def query(self) -> bool:
        """Whether everything before it is done.

        Raises:
            DeviceError: from what an operation of its stream, or of one that its stream waited for, raised.
        """

    def passed_at(self) -> float | None:
        """When it came to pass, in seconds of ``time.perf_counter``; None if it has not, or nobody knows."""


class Stream(Protocol):
    """Operations that run one after another."""

    def launch(
        self,
        operation: Callable[[], None],
        work: tuple[Work, ...] = (),
        *,
        reads: Iterable[Resource] = (),
        writes: Iterable[Resource] = (),
    ) -> None:
        """Queue an operation.

        Args:
            operation: called once, in any thread; on CUDA at once, and what it launches is ordered by the
                stream. What it raises comes out here where it is called at once, else from ``query``.
            work: what it does, for those who pace or predict it.
            reads: shared resources it reads.
            writes: shared resources it writes.
        """

    def wait(self, event: Event) -> None:
        """Let operations launched from now on begin after ``event``."""

    def record(self) -> Event:
        """An event after everything launched so far; the doorbell rings when it comes to pass."""


class Device(Protocol):
    """One accelerator."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def facts(self) -> DeviceFacts:
        """What is known of it."""

    @property
    def compute(self) -> Stream:
        """Layers, device attention, sampling."""

    @property
    def download(self) -> Stream:
        """Copies to the host."""

    @property
    def upload(self) -> Stream:
        """Copies from the host."""

    @property
    def host(self) -> Stream:
        """Host attention where the native driver doesn't do it: the CPU's own work."""

    def wait(self, timeout: float) -> None:
        """Sleep until the doorbell has rung since the last call, ``timeout`` seconds at most."""

    @property
    def doorbell(self) -> int:
        """An eventfd that wakes ``wait``: for those who finish something outside the device's streams."""

    def host_touches(self, reads: Iterable[Resource] = (), writes: Iterable[Resource] = ()) -> None:
        """Say that the host itself reads or writes shared resources now, for those who check that it may."""

    def begin(self) -> None:
        """An iteration begins: idle time counts from here."""

    def end(self) -> None:
        """The iteration has ended: what follows is not idle time."""

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Uninitialised host memory that the device can copy from and to at any time."""

    def busy_seconds(self) -> Mapping[Stage, float]:
        """Time spent in each stage since the start."""

    def idle_seconds(self) -> tuple[float, float]:
        """Compute stream, from ``begin`` to ``end`` of all iterations so far.

        Returns:
            Seconds without work, and those of them in which an operation that was launched, and had no
            other before it, stood waiting for an event.
        """

    def close(self) -> None:
        """End the threads; what is queued is not run."""

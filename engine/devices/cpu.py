"""The simplest device: none. Everything is done where it is launched, host attention too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from engine.devices.base import DeviceFacts, Event, Resource
from engine.devices.doorbell import Doorbell
from engine.devices.meters import BusyMeter, IdleMeter
from engine.devices.pace import predict
from scheduler.cost_model import CostModel
from scheduler.work import Stage, Work


class DoneEvent:
    """See ``base.Event``."""

    __slots__ = ()

    def query(self) -> bool:
        """True: everything before it was done before it was made."""
        return True

    def passed_at(self) -> float | None:
        """Before anybody could ask."""
        return None


class CpuStream:
    """See ``base.Stream``. What an operation raises comes out of ``launch``."""

    def __init__(self, costs: CostModel | None, bell: Doorbell, busy: BusyMeter) -> None:
        self.idle = IdleMeter()
        self._costs = costs
        self._bell = bell
        self._busy = busy

    def launch(
        self,
        operation: Callable[[], None],
        work: tuple[Work, ...] = (),
        *,
        reads: Iterable[Resource] = (),
        writes: Iterable[Resource] = (),
    ) -> None:
        """Do it: after everything launched before it in any stream, so nothing can be out of order."""
        begun = time.perf_counter()
        self.idle.started(begun, begun, begun)
        operation()
        ended = time.perf_counter()
        self.idle.finished(ended)
        self._busy.add(ended - begun, work, predict(self._costs, work))

    def wait(self, event: Event) -> None:
        """Nothing to wait for."""

    def record(self) -> Event:
        """An event that has come to pass."""
        self._bell.ring()
        return DoneEvent()


class CpuDevice:
    """See ``base.Device``. No threads, no overlap: what it computes is what any device must."""

    def __init__(self, costs: CostModel | None = None) -> None:
        """``costs`` divide the time of an operation with several kinds of work among them."""
        self.facts = DeviceFacts(kind="cpu", name="cpu", memory_bytes=None)
        self.name = self.facts.name
        self._bell = Doorbell()
        self._busy = BusyMeter()
        self.compute = CpuStream(costs, self._bell, self._busy)
        self.download = CpuStream(costs, self._bell, self._busy)
        self.upload = CpuStream(costs, self._bell, self._busy)
        self.host = CpuStream(costs, self._bell, self._busy)

    @property
    def doorbell(self) -> int:
        """An eventfd that wakes ``wait``."""
        return self._bell.fd

    def wait(self, timeout: float) -> None:
        """Sleep until the doorbell has rung since the last call, ``timeout`` seconds at most."""
        self._bell.wait(timeout)

    def host_touches(self, reads: Iterable[Resource] = (), writes: Iterable[Resource] = ()) -> None:
        """Nothing to do: everything before it is done."""

    def begin(self) -> None:
        """An iteration begins."""
        self.compute.idle.begin(time.perf_counter())

    def end(self) -> None:
        """The iteration has ended."""
        self.compute.idle.end(time.perf_counter())

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Uninitialised memory."""
        return torch.empty(shape, dtype=dtype)

    def busy_seconds(self) -> Mapping[Stage, float]:
        """Time spent in each stage since the start."""
        return self._busy.seconds()

    def idle_seconds(self) -> tuple[float, float]:
        """Compute stream: (without work, of that standing at a ``wait``: none)."""
        return self.compute.idle.seconds()

    def close(self) -> None:
        """There are no threads to end."""
        self._bell.close()

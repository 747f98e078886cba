"""An accelerator played by the CPU: CUDA's semantics, and a real device's times if a profile gives them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from engine.devices.base import DeviceFacts, Resource
from engine.devices.doorbell import Doorbell
from engine.devices.emulated_stream import EmulatedStream, Surroundings
from engine.devices.meters import BusyMeter
from scheduler.cost_model import CostModel
from scheduler.work import Stage


class EmulatedDevice:
    """See ``base.Device``. One thread a stream; a thread without work sleeps.

    Its memory is the host's. What makes it small is the number of pages it is given.
    """

    def __init__(
        self,
        costs: CostModel | None = None,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """With ``costs``, an operation takes at least what they give for its work; else what it takes."""
        self.facts = DeviceFacts(kind="emulated", name="emulated accelerator", memory_bytes=None)
        self.name = self.facts.name
        self._clock = clock
        self._bell = Doorbell()
        self._busy = BusyMeter()
        self._closing = threading.Event()
        shared = Surroundings(costs, clock, sleep, self._bell, self._busy, self._closing)
        self.compute = EmulatedStream("compute", shared)
        self.download = EmulatedStream("download", shared)
        self.upload = EmulatedStream("upload", shared)
        self.host = EmulatedStream("host", shared)

    @property
    def doorbell(self) -> int:
        """An eventfd that wakes ``wait``."""
        return self._bell.fd

    def wait(self, timeout: float) -> None:
        """Sleep until the doorbell has rung since the last call, ``timeout`` seconds at most."""
        self._bell.wait(timeout)

    def host_touches(self, reads: Iterable[Resource] = (), writes: Iterable[Resource] = ()) -> None:
        """Nothing to do: ``CheckedDevice`` checks it."""

    def begin(self) -> None:
        """An iteration begins."""
        self.compute.idle.begin(self._clock())

    def end(self) -> None:
        """The iteration has ended."""
        self.compute.idle.end(self._clock())

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Uninitialised host memory."""
        return torch.empty(shape, dtype=dtype)

    def busy_seconds(self) -> Mapping[Stage, float]:
        """Time spent in each stage since the start, by the streams' own account."""
        return self._busy.seconds()

    def idle_seconds(self) -> tuple[float, float]:
        """Compute stream: (without work, of that standing at a ``wait``)."""
        return self.compute.idle.seconds()

    def close(self) -> None:
        """End the threads, after the operations that they are in; what is queued is not run."""
        streams = (self.compute, self.download, self.upload, self.host)
        if not self._closing.is_set():
            self._closing.set()
            for stream in streams:
                stream.end()
        for stream in streams:
            stream.join()
        self._bell.close()

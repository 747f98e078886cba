"""An emulated device that looks for mistakes: any legal order, and an error wherever a wait is missing.

No threads and no clock: operations are run within the host's own calls, in an order drawn from a seed, so
what happened once happens again. A missing wait is found when an operation is launched, whether or not the
order drawn would have shown it.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.devices.base import DeviceError, DeviceFacts, Event, Resource
from engine.devices.doorbell import Doorbell
from engine.devices.hazards import Doing, Hazards, Knowledge, StallError, came_before, joined
from engine.devices.meters import BusyMeter
from engine.devices.outcome import Outcome, raise_failure
from scheduler.work import Stage, Work

_HOST = 0
_STREAMS = ("compute", "download", "upload", "host")


class CheckedEvent:
    """See ``base.Event``. Asking for it may run something."""

    def __init__(self, device: CheckedDevice, stream: str, known: Knowledge) -> None:
        self._device = device
        self._stream = stream
        self.known = known
        """What came before it."""
        self.done = False
        self.failure: BaseException | None = None

    def query(self) -> bool:
        """Whether everything before it is done. If so, the host knows that from now on."""
        self._device.run_some()
        if not self.done:
            return False
        raise_failure(self._stream, self.failure)
        self._device.host_learns(self.known)
        return True

    def passed_at(self) -> float | None:
        """There is no clock."""
        return None


@dataclass(slots=True)
class _Entry:
    """What stands in a stream's queue: an operation or an event, and the events it comes after."""

    waits: tuple[CheckedEvent, ...]
    doing: Doing | None = None
    operation: Callable[[], None] | None = None
    work: tuple[Work, ...] = ()
    event: CheckedEvent | None = None


class CheckedStream:
    """See ``base.Stream``."""

    def __init__(self, device: CheckedDevice, actor: int, name: str) -> None:
        self._device = device
        self._actor = actor
        self._name = name
        self._known: Knowledge = (0,) * (1 + len(_STREAMS))
        self._launched = 0
        self._waits: list[CheckedEvent] = []
        self._queue: deque[_Entry] = deque()
        self._outcome = Outcome()

    def launch(
        self,
        operation: Callable[[], None],
        work: tuple[Work, ...] = (),
        *,
        reads: Iterable[Resource] = (),
        writes: Iterable[Resource] = (),
    ) -> None:
        """Queue an operation.

        Raises:
            HazardError: it is not ordered after another that touches the same resource.
        """
        self._device.check_open()
        number = self._launched + 1
        stages = "+".join(item.stage for item in work) or "operation"
        name = f"{self._name} {number} ({stages}, {getattr(operation, '__qualname__', repr(operation))})"
        doing = Doing(self._actor, number, name)
        known = joined(self._known, self._device.host_known)
        self._device.hazards.touch(doing, known, reads, writes)
        self._launched = number
        self._known = (*known[: self._actor], number, *known[self._actor + 1 :])
        self._queue.append(_Entry(self._take_waits(), doing, operation, work))
        if any(item.stage is Stage.HOST_ATTENTION for item in work):
            self._device.host_attention.add(doing)
        self._device.run_some()

    def wait(self, event: Event) -> None:
        """Let operations launched from now on begin after ``event``.

        Raises:
            StallError: this is the compute stream, and host attention before ``event`` is not done.
        """
        if not isinstance(event, CheckedEvent):
            raise TypeError(f"not an event of this device: {event!r}")
        if self is self._device.compute:
            for doing in self._device.host_attention:
                if came_before(doing, event.known):
                    raise StallError(f"the compute stream would wait for {doing.name}")
        self._known = joined(self._known, event.known)
        self._waits.append(event)

    def record(self) -> CheckedEvent:
        """An event after everything launched so far."""
        self._device.check_open()
        event = CheckedEvent(self._device, self._name, self._known)
        self._queue.append(_Entry(self._take_waits(), event=event))
        return event

    def can_run(self) -> bool:
        """Whether there is something next, and nothing to wait for."""
        return bool(self._queue) and all(event.done for event in self._queue[0].waits)

    def run_next(self) -> None:
        """Take the next of the queue."""
        entry = self._queue.popleft()
        for event in entry.waits:
            self._outcome.fail(event.failure)
        if entry.operation is not None and self._outcome.failure is None:
            begun = time.perf_counter()
            with self._outcome:
                entry.operation()
            self._device.busy.add(time.perf_counter() - begun, entry.work, ())
        if entry.doing is not None:
            self._device.host_attention.discard(entry.doing)
        if entry.event is not None:
            entry.event.done = True
            entry.event.failure = self._outcome.failure
            self._device.bell.ring()

    def drop(self) -> None:
        """Run nothing any more; events that have not come to pass never will."""
        self._outcome.fail(DeviceError("the device was closed"))
        for entry in self._queue:
            if entry.event is not None:
                entry.event.done = True
                entry.event.failure = self._outcome.failure
        self._queue.clear()

    def _take_waits(self) -> tuple[CheckedEvent, ...]:
        waits = tuple(self._waits)
        self._waits.clear()
        return waits


class CheckedDevice:
    """See ``base.Device``. Each seed has its own temper: how far each stream lags, and the whole device."""

    def __init__(self, seed: int) -> None:
        """The order of operations is a function of ``seed`` and of what the host does."""
        self.facts = DeviceFacts(kind="emulated", name=f"checked accelerator, seed {seed}", memory_bytes=None)
        self.name = self.facts.name
        self.bell = Doorbell()
        self.busy = BusyMeter()
        self.hazards = Hazards()
        self.host_attention: set[Doing] = set()
        """Launched and not done."""
        self.host_known: Knowledge = (0,) * (1 + len(_STREAMS))
        self._random = random.Random(seed)
        self._eagerness = self._random.choice((0.1, 0.5, 0.9))
        self.compute, self.download, self.upload, self.host = self._streams = tuple(
            CheckedStream(self, actor, name) for actor, name in enumerate(_STREAMS, start=1)
        )
        self._haste = {stream: self._random.choice((0.02, 0.3, 1.0)) for stream in self._streams}
        self._closed = False

    @property
    def doorbell(self) -> int:
        """An eventfd that wakes ``wait``."""
        return self.bell.fd

    def wait(self, timeout: float) -> None:
        """Run something, and ask no clock; sleep at the doorbell only if nothing can run."""
        if self._run_one():
            self.run_some()
            timeout = 0.0
        self.bell.wait(timeout)

    def host_touches(self, reads: Iterable[Resource] = (), writes: Iterable[Resource] = ()) -> None:
        """The host itself reads or writes shared resources now.

        Raises:
            HazardError: it has not seen the event of an operation that touches the same resource.
        """
        number = self.host_known[_HOST] + 1
        self.hazards.touch(Doing(_HOST, number, f"the host ({number})"), self.host_known, reads, writes)
        self.host_known = (number, *self.host_known[1:])

    def host_learns(self, known: Knowledge) -> None:
        """The host has seen an event: what came before that comes before all it does from now on."""
        self.host_known = joined(self.host_known, known)
        self.hazards.forget(self.host_known)

    def begin(self) -> None:
        """Nothing to measure: when things happen is drawn by lot here."""

    def end(self) -> None:
        """Nothing to measure."""

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Uninitialised host memory."""
        return torch.empty(shape, dtype=dtype)

    def busy_seconds(self) -> Mapping[Stage, float]:
        """Time spent in each stage since the start."""
        return self.busy.seconds()

    def idle_seconds(self) -> tuple[float, float]:
        """Not measured: (0, 0)."""
        return 0.0, 0.0

    def close(self) -> None:
        """Run nothing any more."""
        self._closed = True
        for stream in self._streams:
            stream.drop()
        self.bell.close()

    def check_open(self) -> None:
        """Raise DeviceError after ``close``."""
        if self._closed:
            raise DeviceError("the device is closed")

    def run_some(self) -> None:
        """Run a few operations, or none: what a device does behind the host's back."""
        while self._random.random() < self._eagerness and self._run_one():
            pass

    def _run_one(self) -> bool:
        """Take the head of one of the streams that may go on, drawn by lot; False if none may."""
        able = [stream for stream in self._streams if stream.can_run()]
        if not able:
            return False
        self._random.choices(able, [self._haste[stream] for stream in able])[0].run_next()
        return True

"""A stream of the emulated device: a thread that takes operations from a queue and keeps to a pace.

With costs, a stream keeps an account of time. An operation begins when it was launched, the one before it
ended and the events it waits for came to pass, whichever is last; it takes its pace, or as long as it
really computes if that is more. The thread sleeps until the end by that account and wakes a little late;
what is next begins late, but not by the account, so that lateness never adds up. Host attention is real
work of the real CPU: it begins and ends when it does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import SimpleQueue

import torch

from engine.devices.base import DeviceError, Event, Resource
from engine.devices.doorbell import Doorbell
from engine.devices.meters import BusyMeter, IdleMeter
from engine.devices.outcome import Outcome, raise_failure
from engine.devices.pace import predict, sharpen_sleep, sleep_until
from scheduler.cost_model import CostModel
from scheduler.work import Stage, Work


@dataclass(frozen=True)
class Surroundings:
    """What the streams of a device share."""

    costs: CostModel | None
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    bell: Doorbell
    busy: BusyMeter
    closing: threading.Event


class EmulatedEvent:
    """See ``base.Event``. The stream's thread completes it, other streams' threads sleep at it."""

    __slots__ = ("_done", "_gate", "_stream", "failure", "time")

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._done = False
        self._gate = threading.Lock()
        self._gate.acquire()
        self.failure: BaseException | None = None
        self.time = 0.0
        """When it came to pass by its stream's account."""

    def query(self) -> bool:
        """Whether everything before it is done."""
        if not self._done:
            return False
        raise_failure(self._stream, self.failure)
        return True

    def complete(self, time: float, failure: BaseException | None) -> None:
        """It has come to pass, or never will."""
        self.time, self.failure = time, failure
        self._done = True
        self._gate.release()

    def passed_at(self) -> float | None:
        """The time of its stream: paced, so it may be a moment before anybody could see it."""
        return self.time if self._done else None

    def join(self) -> None:
        """Sleep until it is complete."""
        if not self._done:
            with self._gate:
                pass


class _Entry:
    """What stands in a stream's queue: an operation or an event, and the events it comes after."""

    __slots__ = ("event", "launched", "operation", "waits", "work")

    def __init__(
        self,
        launched: float,
        waits: tuple[EmulatedEvent, ...],
        operation: Callable[[], None] | None = None,
        work: tuple[Work, ...] = (),
        event: EmulatedEvent | None = None,
    ) -> None:
        self.launched = launched
        self.waits = waits
        self.operation = operation
        self.work = work
        self.event = event


class EmulatedStream:
    """See ``base.Stream``."""

    def __init__(self, name: str, shared: Surroundings) -> None:
        self.idle = IdleMeter()
        self._name = name
        self._shared = shared
        self._queue: SimpleQueue[_Entry | None] = SimpleQueue()
        self._waits: list[EmulatedEvent] = []
        self._outcome = Outcome()
        self._ended = 0.0
        self._thread = threading.Thread(target=self._work_off, name=f"emulated {name}", daemon=True)
        self._thread.start()

    def launch(
        self,
        operation: Callable[[], None],
        work: tuple[Work, ...] = (),
        *,
        reads: Iterable[Resource] = (),
        writes: Iterable[Resource] = (),
    ) -> None:
        """Queue an operation. What it reads and writes is for ``CheckedDevice`` to look at."""
        self._put(_Entry(self._shared.clock(), self._take_waits(), operation, work))

    def wait(self, event: Event) -> None:
        """Let operations launched from now on begin after ``event``."""
        if not isinstance(event, EmulatedEvent):
            raise TypeError(f"not an event of this device: {event!r}")
        self._waits.append(event)

    def record(self) -> EmulatedEvent:
        """An event after everything launched so far."""
        event = EmulatedEvent(self._name)
        self._put(_Entry(self._shared.clock(), self._take_waits(), event=event))
        return event

    def end(self) -> None:
        """Have the thread end, once ``closing`` is set: it skips what is queued."""
        self._queue.put(None)

    def join(self) -> None:
        """Sleep until it has ended."""
        self._thread.join()

    def _put(self, entry: _Entry) -> None:
        if self._shared.closing.is_set():
            raise DeviceError("the device is closed")
        self._queue.put(entry)

    def _take_waits(self) -> tuple[EmulatedEvent, ...]:
        waits = tuple(self._waits)
        self._waits.clear()
        return waits

    def _work_off(self) -> None:
        sharpen_sleep()
        # OpenMP counts its threads for each calling thread. torch hands down its own number when first asked,
        # but a matrix product does not ask: it would take every core, and wait for each.
        torch.get_num_threads()
        while (entry := self._queue.get()) is not None:
            self._work_off_one(entry)
            del entry  # and with it the operation's tensors, however long the next one takes to come

    def _work_off_one(self, entry: _Entry) -> None:
        arrived = 0.0
        for event in entry.waits:
            event.join()
            self._outcome.fail(event.failure)
            arrived = max(arrived, event.time)
        if self._shared.closing.is_set():
            self._outcome.fail(DeviceError("the device was closed"))
        if entry.operation is not None and self._outcome.failure is None:
            with self._outcome:
                self._run(entry.operation, entry, arrived)
        if entry.event is not None:
            entry.event.complete(max(self._ended, arrived), self._outcome.failure)
            self._shared.bell.ring()

    def _run(self, operation: Callable[[], None], entry: _Entry, arrived: float) -> None:
        shared = self._shared
        predicted = predict(shared.costs, entry.work)
        paced = shared.costs is not None and all(
            item.stage is not Stage.HOST_ATTENTION for item in entry.work
        )
        started = shared.clock()
        begun = max(self._ended, entry.launched, arrived) if paced else started
        self.idle.started(begun, entry.launched, arrived)
        operation()
        seconds = shared.clock() - started
        if paced:
            seconds = max(seconds, sum(predicted))
        self._ended = begun + seconds
        sleep_until(self._ended, shared.clock, shared.sleep, shared.closing.is_set)
        self.idle.finished(self._ended)
        shared.busy.add(seconds, entry.work, predicted)

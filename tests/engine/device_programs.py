"""What the tests of devices have in common."""

from __future__ import annotations

from engine.devices.base import Device, Event
from scheduler.work import Work

STREAMS = ("compute", "download", "upload", "host")


class RowCosts:
    """A cost model of which devices need one method: a millisecond for each row."""

    def seconds(self, work: Work) -> float:
        return work.rows * 1e-3


def finish(device: Device, *events: Event) -> None:
    """Wait until all of them have come to pass."""
    for event in events:
        while not event.query():
            device.wait(10.0)


class FakeClock:
    """A clock that sleeping moves on, always a little too far."""

    def __init__(self, oversleep: float = 0.0) -> None:
        self.now = 0.0
        self.oversleep = oversleep

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.oversleep

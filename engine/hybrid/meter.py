"""What was launched, in predicted seconds: measured ones are compared with them to correct the cost model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from engine.devices.base import Device, Event, Resource, Stream
from scheduler.cost_model import CostModel
from scheduler.work import Stage, Work


class Meter:
    """Adds up the work of streams."""

    def __init__(self, costs: CostModel | None) -> None:
        """Without ``costs`` everything is predicted to take no time."""
        self._costs = costs
        self._seconds: dict[Stage, float] = {}

    def seconds(self, work: tuple[Work, ...]) -> float:
        """Predicted for ``work``."""
        return 0.0 if self._costs is None else sum(map(self._costs.seconds, work))

    def add(self, work: tuple[Work, ...]) -> None:
        """``work`` is launched now."""
        if self._costs is None:
            return
        for each in work:
            seconds = self._costs.seconds(each)
            self._seconds[each.stage] = self._seconds.get(each.stage, 0.0) + seconds

    def predicted(self) -> Mapping[Stage, float]:
        """Since the start, by stage."""
        return MappingProxyType(dict(self._seconds))


class MeteredStream:
    """A stream whose work is added up; see ``engine.devices.base.Stream``."""

    def __init__(self, stream: Stream, meter: Meter) -> None:
        self._stream = stream
        self._meter = meter

    def launch(
        self,
        operation: Callable[[], None],
        work: tuple[Work, ...] = (),
        *,
        reads: Iterable[Resource] = (),
        writes: Iterable[Resource] = (),
    ) -> None:
        """Queue an operation."""
        self._meter.add(work)
        self._stream.launch(operation, work, reads=reads, writes=writes)

    def wait(self, event: Event) -> None:
        """Let operations launched from now on begin after ``event``."""
        self._stream.wait(event)

    def record(self) -> Event:
        """An event after everything launched so far."""
        return self._stream.record()


class MeteredDevice:
    """A device whose streams are metered; see ``engine.devices.base.Device``."""

    def __init__(self, device: Device, meter: Meter) -> None:
        self.name = device.name
        self.facts = device.facts
        self.compute: Stream = MeteredStream(device.compute, meter)
        self.download: Stream = MeteredStream(device.download, meter)
        self.upload: Stream = MeteredStream(device.upload, meter)
        self.host: Stream = MeteredStream(device.host, meter)
        self.wait = device.wait
        self.pinned = device.pinned
        self.host_touches = device.host_touches
        self.busy_seconds = device.busy_seconds
        self.idle_seconds = device.idle_seconds
        self.begin = device.begin
        self.end = device.end
        self.close = device.close
        self.doorbell = device.doorbell

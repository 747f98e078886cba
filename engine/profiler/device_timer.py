"""Times of operations on a device, by its own account: what the executor reads, too."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from engine.devices.base import Device, Stream
from engine.profiler.session import Point, Visit
from scheduler.clock import Clock
from scheduler.profile import CopyTimes
from scheduler.work import Stage, Work

Operation = Callable[[], object]
"""What it returns is not looked at."""

_WAIT_SECONDS = 0.1
_SLEEP_SECONDS = 0.001
_BUFFERS = 4
"""That large copies take in turn, so that none finds the last one's in a cache."""
_FASTEST = 1e-9
"""Seconds that anything takes: where a clock shows no difference."""


class DeviceTimer:
    """Runs one operation at a time."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def run(self, stream: Stream, operation: Operation, work: tuple[Work, ...] = ()) -> None:
        """Launch an operation and wait until it has ended."""

        def infer() -> None:
            with torch.inference_mode():
                operation()

        stream.launch(infer, work)
        event = stream.record()
        while not event.query():
            self.device.wait(_WAIT_SECONDS)

    def seconds(self, stream: Stream, operation: Operation, work: Work) -> float:
        """How long an operation takes, from its start to its end."""
        before = self.device.busy_seconds().get(work.stage, 0.0)
        self.run(stream, operation, (work,))
        return self.device.busy_seconds()[work.stage] - before


def launch_point(timer: DeviceTimer, clock: Clock) -> Point:
    """From the moment when the sleeping host is to hand an operation over to its start on an idle stream.

    How much earlier than a stream is free the executor has to wake, and decide what comes next.
    """
    device = timer.device

    def once() -> float:
        began: list[float] = []
        device.wait(0.0)
        due = clock.now() + _SLEEP_SECONDS
        while (left := due - clock.now()) > 0.0:
            device.wait(left)
        timer.run(device.compute, lambda: began.append(clock.now()))
        return began[0] - due

    return lambda: once


def copy_point(timer: DeviceTimer, stage: Stage, size: int) -> Point:
    """A copy of ``size`` bytes, ``DOWNLOAD`` or ``UPLOAD``."""
    device = timer.device
    stream = device.download if stage is Stage.DOWNLOAD else device.upload

    def prepare() -> Visit:
        pairs = [
            (torch.ones(size, dtype=torch.uint8), device.pinned((size,), torch.uint8).fill_(1))
            for _ in range(_BUFFERS)
        ]
        turns = itertools.cycle(pairs)

        def once() -> float:
            on_device, on_host = next(turns)
            source, target = (on_device, on_host) if stage is Stage.DOWNLOAD else (on_host, on_device)
            work = Work(stage, bytes=size)
            return timer.seconds(stream, lambda: target.copy_(source, non_blocking=True), work)

        return once

    return prepare


def copy_times(small: int, small_seconds: float, large: int, large_seconds: float) -> CopyTimes:
    """Latency and rate of copies of which a small and a large one were measured, sizes in bytes."""
    rate = (large - small) / max(large_seconds - small_seconds, _FASTEST)
    return CopyTimes(latency=max(0.0, small_seconds - small / rate), bytes_per_second=rate)

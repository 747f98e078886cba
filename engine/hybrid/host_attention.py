"""One layer's decode attention of a wave, handed to the CPU while the accelerator does other work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from torch import Tensor

from engine.attention.base import AttentionPlan
from engine.attention.native import NativeAttentionPlan
from engine.devices.base import Device, Event, Resource
from engine.hybrid.jitter import Jitter
from engine.hybrid.meter import Meter
from scheduler.clock import Clock
from scheduler.work import Stage, Work

if TYPE_CHECKING:
    from engine.kernels import _native

_GATES = 1024
_SPIN_MICROSECONDS = 20
_LARGEST_WORD = 2**32 - 1


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """What is to be done. The tensors are pinned, and nobody else's until the job is done."""

    plan: Callable[[], AttentionPlan]
    """Of the wave's rows; the first call may touch pages."""
    layer: int
    q: Tensor
    """[rows, heads, head_dim]."""
    kv: Tensor
    """[rows, 2, kv_heads, head_dim], to be stored first."""
    output: Tensor
    """[rows, heads * head_dim]."""
    work: Work
    reads: tuple[Resource, ...]
    writes: tuple[Resource, ...]


class Job(Protocol):
    """Attention that was started."""

    def done(self) -> bool:
        """Whether its output is there."""

    def cancel(self) -> None:
        """Have it not run, if it has not begun."""


class HostAttention(Protocol):
    """Computes jobs one after another, beside everything else."""

    def start(self, attention: LayerAttention) -> Job:
        """Begin once what was launched on the device's download stream so far is done."""

    def busy_seconds(self) -> float:
        """Time spent on jobs since the start."""

    def jitter(self) -> float:
        """Seconds by which jobs lately took more or less than the mean; 0 if that is not known."""

    def close(self) -> None:
        """Wait for the job that runs; no other begins."""


class StreamAttention:
    """On a stream of the device: for devices that check the order of things, and without native kernels."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def start(self, attention: LayerAttention) -> Job:
        """See ``HostAttention``."""
        stream = self._device.host
        stream.wait(self._device.download.record())

        def attend() -> None:
            plan = attention.plan()
            plan.append(attention.layer, attention.kv)
            attention.output.copy_(plan.attend(attention.layer, attention.q))

        stream.launch(attend, (attention.work,), reads=attention.reads, writes=attention.writes)
        return _StreamJob(stream.record())

    def busy_seconds(self) -> float:
        """See ``HostAttention``."""
        return self._device.busy_seconds().get(Stage.HOST_ATTENTION, 0.0)

    def jitter(self) -> float:
        """See ``HostAttention``."""
        return 0.0

    def close(self) -> None:
        """Its jobs end with the device's stream."""


class _StreamJob:
    def __init__(self, event: Event) -> None:
        self._event = event

    def done(self) -> bool:
        return self._event.query()

    def cancel(self) -> None:
        """What is on a stream runs."""


class NativeDriver:
    """On the native driver's thread: nothing of Python runs between the download and the doorbell."""

    def __init__(self, device: Device, meter: Meter, clock: Clock, repeats: int = 1) -> None:
        """``repeats`` is for benchmarks: how often each job is computed, as on a CPU so much slower."""
        from engine.kernels import _native

        self._device = device
        self._meter = meter
        self._clock = clock
        self._repeats = repeats
        self._driver: _native.AttentionDriver = _native.AttentionDriver(_SPIN_MICROSECONDS)
        self._gates = np.zeros(_GATES, dtype=np.uint32)
        self._done = np.zeros(_GATES, dtype=np.uint32)
        self._started = 0
        self._busy = 0.0
        self._last_end = 0.0
        self._jitter = Jitter()

    def start(self, attention: LayerAttention) -> Job:
        """See ``HostAttention``."""
        plan = attention.plan()
        if not isinstance(plan, NativeAttentionPlan):
            raise TypeError("the native driver computes native plans only")
        self._meter.add((attention.work,))
        self._started = self._started % _LARGEST_WORD + 1
        job = _NativeJob(self, self._started, attention)
        for number in range(self._repeats):
            last = number == self._repeats - 1
            job.ticket = self._submit(plan, attention, job.word, stores=number == 0, ends=last)
        self._device.download.launch(job.open)
        return job

    def open(self, job: _NativeJob) -> None:
        """Its input has come."""
        job.opened = self._clock.now()
        self._gates[job.word % _GATES] = job.word
        self._driver.notify()

    def has_ended(self, job: _NativeJob) -> bool:
        """Whether its output is there; asked until it is, and then no more."""
        if self._done[job.word % _GATES] != job.word:
            return False
        now = self._clock.now()
        seconds = now - max(job.opened, self._last_end)
        self._busy += seconds
        self._jitter.observe(seconds, self._meter.seconds((job.work,)))
        self._last_end = now
        return True

    def cancel(self, job: _NativeJob) -> None:
        """Unless it has begun."""
        self._driver.cancel(job.ticket)

    def busy_seconds(self) -> float:
        """See ``HostAttention``."""
        return self._busy

    def jitter(self) -> float:
        """See ``HostAttention``."""
        return self._jitter.seconds

    def close(self) -> None:
        """See ``HostAttention``."""
        del self._driver

    def _submit(
        self, plan: NativeAttentionPlan, attention: LayerAttention, word: int, stores: bool, ends: bool
    ) -> int:
        at = word % _GATES * self._gates.itemsize
        return self._driver.submit(
            plan.native_plan,
            first_layer=attention.layer,
            layers=1,
            kv=attention.kv.data_ptr() if stores else 0,
            kv_stride=0,
            queries=attention.q.data_ptr(),
            outputs=attention.output.data_ptr(),
            stride=0,
            gates=self._gates.ctypes.data + at,
            gate_value=word,
            done=self._done.ctypes.data + at if ends else 0,
            done_value=word,
            event_fd=self._device.doorbell if ends else -1,
        )


class _NativeJob:
    """A gate word is opened by writing the job's number into it, and so is the word that says it is done."""

    def __init__(self, driver: NativeDriver, word: int, attention: LayerAttention) -> None:
        self.word = word
        self.ticket = 0
        self.opened = 0.0
        self._driver = driver
        self._attention = attention  # keeps the buffers alive
        self.work = attention.work
        self._over = False

    def open(self) -> None:
        self._driver.open(self)

    def done(self) -> bool:
        self._over = self._over or self._driver.has_ended(self)
        return self._over

    def cancel(self) -> None:
        self._driver.cancel(self)

"""What every device promises."""

from __future__ import annotations

import os
from functools import partial

import pytest
import torch

from engine.devices.base import Buffer, DeviceError
from engine.devices.checked import CheckedDevice
from engine.devices.choice import make_device
from engine.devices.cpu import CpuDevice
from engine.devices.emulated import EmulatedDevice
from engine.model_error import ModelError
from scheduler.work import Stage, Work
from tests.engine.device_programs import STREAMS, RowCosts, finish

MAKERS = {
    "cpu": CpuDevice,
    "emulated": EmulatedDevice,
    "paced": partial(EmulatedDevice, RowCosts()),
    **{f"checked {seed}": partial(CheckedDevice, seed) for seed in range(5)},
}
QUEUEING = [name for name in MAKERS if name != "cpu"]


def opened(name: str):
    device = MAKERS[name]()
    yield device
    device.close()


@pytest.fixture(params=MAKERS)
def device(request):
    yield from opened(request.param)


@pytest.fixture(params=QUEUEING)
def queueing(request):
    """One that does not run operations where they are launched."""
    yield from opened(request.param)


def test_a_stream_keeps_its_order(device):
    done = []
    for number in range(50):
        device.compute.launch(partial(done.append, number))
    finish(device, device.compute.record())
    assert done == list(range(50))


def test_events_order_streams(device):
    """A value goes round all streams ten times, each adding its own mark."""
    value = Buffer("value", (torch.zeros(1),))
    event = None
    for _ in range(10):
        for mark, name in enumerate(STREAMS):
            stream = getattr(device, name)
            if event is not None:
                stream.wait(event)
            stream.launch(lambda mark=mark: value.set(value.get()[0] * 3 + mark), writes=[value])
            event = stream.record()
            if name == "host":
                finish(device, event)
    expected = 0.0
    for step in range(40):
        expected = float(torch.tensor(expected) * 3 + step % 4)
    assert float(value.get()[0]) == expected


def test_the_doorbell_can_be_rung_from_outside(device):
    device.wait(0.0)
    os.eventfd_write(device.doorbell, 3)
    device.wait(3600.0)


def test_pinned_memory(device):
    tensor = device.pinned((3, 4), torch.bfloat16)
    assert tensor.shape == (3, 4) and tensor.dtype == torch.bfloat16 and tensor.device.type == "cpu"


def test_busy_time_is_counted_by_stage(device):
    device.compute.launch(lambda: None, (Work(Stage.DENSE, rows=1),))
    device.host.launch(lambda: None, (Work(Stage.HOST_ATTENTION, rows=1),))
    device.download.launch(lambda: None)
    finish(device, device.compute.record(), device.host.record(), device.download.record())
    busy = device.busy_seconds()
    assert set(busy) == set(Stage)
    assert {stage for stage, seconds in busy.items() if seconds > 0} == {Stage.DENSE, Stage.HOST_ATTENTION}


def fail() -> None:
    raise ZeroDivisionError("no reason")


def test_a_failed_operation_stops_its_stream(queueing):
    done = []
    before = queueing.compute.record()
    queueing.compute.launch(fail)
    queueing.compute.launch(partial(done.append, "after it"))
    after = queueing.compute.record()
    queueing.upload.launch(partial(done.append, "elsewhere"))
    elsewhere = queueing.upload.record()
    with pytest.raises(DeviceError, match="compute stream: ZeroDivisionError: no reason") as caught:
        finish(queueing, after)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    finish(queueing, before, elsewhere)
    assert done == ["elsewhere"]
    with pytest.raises(DeviceError):
        after.query()


def test_a_failure_reaches_the_streams_that_wait_for_it(queueing):
    done = []
    queueing.download.launch(fail)
    queueing.host.wait(queueing.download.record())
    queueing.host.launch(partial(done.append, "of nothing"))
    queueing.upload.wait(queueing.host.record())
    with pytest.raises(DeviceError, match="upload stream: ZeroDivisionError"):
        finish(queueing, queueing.upload.record())
    assert done == []


def test_without_a_queue_a_failure_comes_out_at_launch():
    device = CpuDevice()
    with pytest.raises(ZeroDivisionError):
        device.compute.launch(fail)
    device.close()


def test_closing_twice(device):
    device.close()
    device.close()


def test_nothing_can_be_launched_after_closing(queueing):
    queueing.close()
    with pytest.raises(DeviceError, match="closed"):
        queueing.compute.launch(lambda: None)
    with pytest.raises(DeviceError, match="closed"):
        queueing.compute.record()


def test_an_event_belongs_to_its_device(queueing):
    with pytest.raises(TypeError, match="not an event of this device"):
        queueing.compute.wait(CpuDevice().compute.record())


@pytest.mark.parametrize("kind", ["cpu", "emulated"])
def test_choice(kind: str):
    device = make_device(kind, RowCosts())
    assert device.facts.kind == kind and device.facts.name == device.name
    device.close()


@pytest.mark.parametrize("kind", ["cuda", "abacus"])
def test_choice_of_what_there_is_not(kind: str):
    with pytest.raises(ModelError, match=kind):
        make_device(kind, None)

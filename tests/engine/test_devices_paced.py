"""The emulated device's threads and its account of time, on a clock that only sleeping moves."""

from __future__ import annotations

import ctypes
import threading
import time
from pathlib import Path

import pytest
import torch

from engine.devices.base import DeviceError
from engine.devices.emulated import EmulatedDevice
from engine.devices.meters import BusyMeter, IdleMeter
from scheduler.work import Stage, Work
from tests.engine.device_programs import FakeClock, RowCosts, finish


def dense(rows: int) -> tuple[Work, ...]:
    return (Work(Stage.DENSE, rows=rows),)


@pytest.fixture
def clock():
    return FakeClock(oversleep=0.0004)


@pytest.fixture
def device(clock):
    device = EmulatedDevice(RowCosts(), clock=clock, sleep=clock.sleep)
    yield device
    device.close()


def nothing() -> None:
    """An operation that takes no time."""


def test_oversleeping_does_not_add_up(device, clock):
    gate = threading.Event()
    device.compute.launch(gate.wait)
    for _ in range(100):
        device.compute.launch(nothing, dense(1))
    end = device.compute.record()
    gate.set()
    finish(device, end)
    assert end.time == pytest.approx(0.1)
    assert clock.now <= 0.1 + 2 * clock.oversleep


def test_an_event_covers_what_was_launched_before_it_only(device):
    gate = threading.Event()
    before = device.compute.record()
    device.compute.launch(gate.wait)
    after = device.compute.record()
    finish(device, before)
    assert not after.query()
    gate.set()
    finish(device, after)


def test_operations_without_work_do_not_shift_the_pace(device):
    gate = threading.Event()
    device.compute.launch(gate.wait)
    for _ in range(100):
        device.compute.launch(nothing, dense(1))
        device.compute.launch(nothing)
    end = device.compute.record()
    gate.set()
    finish(device, end)
    assert end.time == pytest.approx(0.1)


def test_streams_keep_to_torchs_number_of_threads():
    """OpenMP's own count, as a matrix product sees it."""
    maps = Path("/proc/self/maps").read_text()
    openmp = ctypes.CDLL(next(line.split()[-1] for line in maps.splitlines() if "libgomp" in line))
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    device = EmulatedDevice()
    counts: list[int] = []
    device.compute.launch(lambda: counts.append(openmp.omp_get_max_threads()))
    finish(device, device.compute.record())
    device.close()
    torch.set_num_threads(threads)
    assert counts == [3]


def test_an_operation_takes_what_all_its_work_takes(device):
    device.compute.launch(nothing, dense(2) + dense(3))
    end = device.compute.record()
    finish(device, end)
    assert end.time == pytest.approx(0.005)


def test_an_event_has_not_come_to_pass_before_its_time(clock):
    """The thread is caught in the sleep that keeps the pace: the computation itself is done by then."""
    asleep, gate = threading.Event(), threading.Event()

    def sleep(seconds: float) -> None:
        asleep.set()
        gate.wait()
        clock.sleep(seconds)

    device = EmulatedDevice(RowCosts(), clock=clock, sleep=sleep)
    device.compute.launch(nothing, dense(1))
    end = device.compute.record()
    asleep.wait()
    assert not end.query()
    gate.set()
    finish(device, end)
    device.close()


def test_the_pace_begins_at_launch(device, clock):
    device.compute.launch(nothing, dense(1))
    finish(device, device.compute.record())
    clock.now = 7.0
    device.compute.launch(nothing, dense(1))
    end = device.compute.record()
    finish(device, end)
    assert end.time == pytest.approx(7.001)


def test_the_pace_begins_when_waits_are_over(device):
    device.upload.launch(nothing, (Work(Stage.UPLOAD, rows=5),))
    device.compute.wait(device.upload.record())
    device.compute.launch(nothing, dense(1))
    end = device.compute.record()
    finish(device, end)
    assert end.time == pytest.approx(0.006)


def test_a_wait_is_passed_on_without_an_operation_between(device):
    device.upload.launch(nothing, (Work(Stage.UPLOAD, rows=5),))
    device.download.wait(device.upload.record())
    end = device.download.record()
    finish(device, end)
    assert end.time == pytest.approx(0.005)


def test_streams_run_beside_each_other(device):
    """Both are launched at 0, so their account overlaps, whichever thread sleeps first."""
    gate = threading.Event()
    device.upload.launch(gate.wait)
    device.compute.launch(gate.wait)
    device.upload.launch(nothing, (Work(Stage.UPLOAD, rows=5),))
    device.compute.launch(nothing, dense(5))
    ends = device.upload.record(), device.compute.record()
    gate.set()
    finish(device, *ends)
    assert min(end.time for end in ends) == pytest.approx(0.005)


def test_the_account_follows_a_computation_longer_than_its_pace(device, clock):
    device.compute.launch(lambda: clock.sleep(0.003), dense(1))
    end = device.compute.record()
    finish(device, end)
    assert end.time == pytest.approx(0.003 + clock.oversleep)


def test_host_attention_is_not_paced(device, clock):
    device.host.launch(lambda: clock.sleep(0.001), (Work(Stage.HOST_ATTENTION, rows=1000),))
    end = device.host.record()
    finish(device, end)
    assert end.time == pytest.approx(0.001 + clock.oversleep)
    assert device.busy_seconds()[Stage.HOST_ATTENTION] == pytest.approx(end.time)


def test_without_costs_there_is_no_pace(clock):
    device = EmulatedDevice(clock=clock, sleep=clock.sleep)
    device.compute.launch(nothing, dense(1000))
    finish(device, device.compute.record())
    device.close()
    assert clock.now == 0.0


def test_busy_time_is_shared_by_prediction(device):
    device.compute.launch(nothing, (Work(Stage.EXIT, rows=3), Work(Stage.HEAD, rows=1)))
    finish(device, device.compute.record())
    busy = device.busy_seconds()
    assert (busy[Stage.EXIT], busy[Stage.HEAD]) == pytest.approx((0.003, 0.001))


def test_idle_time_and_what_of_it_was_a_wait(device, clock):
    gate = threading.Event()
    device.begin()
    device.host.launch(lambda: (gate.wait(), clock.sleep(0.002)))
    device.compute.wait(device.host.record())
    device.compute.launch(nothing, dense(1))
    end = device.compute.record()
    gate.set()
    finish(device, end)
    clock.now = 1.0
    device.end()
    waited = 0.002 + clock.oversleep
    assert device.idle_seconds() == pytest.approx((1.0 - 0.001, waited))


def test_idle_time_ends_with_the_iteration(device, clock):
    clock.now = 5.0
    device.begin()
    device.compute.launch(nothing, dense(1))
    finish(device, device.compute.record())
    clock.now = 5.002
    device.end()
    clock.now = 9.0
    device.compute.launch(nothing, dense(1))
    finish(device, device.compute.record())
    assert device.idle_seconds() == pytest.approx((0.001, 0.0))


def test_an_event_that_came_early_is_no_wait():
    meter = IdleMeter()
    meter.begin(1.0)
    meter.started(begun=3.0, launched=3.0, arrived=2.0)
    meter.finished(4.0)
    meter.started(begun=4.5, launched=2.0, arrived=4.5)
    meter.finished(6.0)
    meter.started(begun=6.0, launched=5.0, arrived=5.5)
    meter.end(7.0)
    meter.finished(8.0)
    assert meter.seconds() == (2.5, 0.5)


def test_busy_time_without_prediction_is_the_first_stage():
    meter = BusyMeter()
    work = (Work(Stage.DENSE), Work(Stage.HEAD))
    meter.add(2.0, work, ())
    meter.add(1.0, work, (0.0, 0.0))
    meter.add(5.0, (), ())
    assert {stage: seconds for stage, seconds in meter.seconds().items() if seconds} == {Stage.DENSE: 3.0}


def test_a_cost_model_that_fails_fails_the_stream(clock):
    class NoCosts:
        def seconds(self, work: Work) -> float:
            raise LookupError("not in the profile")

    device = EmulatedDevice(NoCosts(), clock=clock, sleep=clock.sleep)
    device.compute.launch(nothing, dense(1))
    with pytest.raises(DeviceError, match="not in the profile"):
        finish(device, device.compute.record())
    device.close()


def test_closing_ends_sleepers_and_runs_nothing_more():
    asleep = threading.Event()

    def sleep(seconds: float) -> None:
        asleep.set()
        time.sleep(seconds)

    before = set(threading.enumerate())
    device = EmulatedDevice(RowCosts(), sleep=sleep)
    done = []
    device.compute.launch(nothing, dense(3_600_000))
    device.compute.launch(lambda: done.append("queued"))
    never = device.compute.record()
    device.upload.wait(never)
    device.upload.launch(lambda: done.append("waiting"))
    threads = set(threading.enumerate()) - before
    assert len(threads) == 4
    asleep.wait()
    device.close()
    assert done == [] and not any(thread.is_alive() for thread in threads)
    with pytest.raises(DeviceError, match="closed"):
        never.query()


def test_a_real_clock_is_kept_to_at_least():
    device = EmulatedDevice(RowCosts())
    begun = time.perf_counter()
    for _ in range(10):
        device.compute.launch(nothing, dense(2))
    finish(device, device.compute.record())
    assert time.perf_counter() - begun >= 0.02
    device.close()

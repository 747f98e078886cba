"""The thread that computes layers while its caller does other work."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.kernels import _native
from tests.kernels.attention_case import INSTRUCTION_SETS, Case, Storage

WAITING, RUNNING, DONE, CANCELLED = range(4)
CAPACITY = 4096
GATE_VALUE, DONE_VALUE = 7, 0x80000001
SMALL = Case(sequences=((1, 100), (5, 20)), windows=(0,) * 4, page_size=8)
TINY = Case(sequences=((1, 0),), dim=16, group=1, kv_heads=1, page_size=1, windows=(0,) * 64)
LARGE = Case(sequences=((400, 0),), kv_heads=4, dim=128, windows=(0, 0, 0))


class Jobs:
    """Layers of a storage's plan, submitted together."""

    of_this_test: ClassVar[list[Jobs]] = []

    def __init__(
        self,
        driver: _native.AttentionDriver,
        storage: Storage,
        *,
        gated: bool = False,
        kv: Tensor | None = None,
        first_layer: int = 0,
        event_fd: int = -1,
    ) -> None:
        self.driver, self.storage, self.kv = driver, storage, kv
        self.layers = storage.case.layers - first_layer
        self.queries = torch.stack(storage.queries[first_layer:])
        self.outputs = torch.full_like(self.queries, torch.nan)
        self.expected = torch.stack([storage.attend(first_layer + i) for i in range(self.layers)])
        self.gates, self.done = np.zeros((2, self.layers), dtype=np.uint32)
        self.ticket = driver.submit(
            storage.plan,
            first_layer=first_layer,
            layers=self.layers,
            kv=0 if kv is None else kv.data_ptr(),
            kv_stride=0 if kv is None else kv[0].nbytes,
            queries=self.queries.data_ptr(),
            outputs=self.outputs.data_ptr(),
            stride=self.outputs[0].nbytes,
            gates=self.gates.ctypes.data if gated else 0,
            gate_value=GATE_VALUE,
            done=self.done.ctypes.data,
            done_value=DONE_VALUE,
            event_fd=event_fd,
        )
        self.of_this_test.append(self)

    def end(self) -> None:
        """Memory must outlive the jobs in it."""
        for layer in range(self.layers):
            self.cancel(layer)
            self.wait(layer)

    def states(self) -> list[int]:
        return [self.driver.state(self.ticket + i) for i in range(self.layers)]

    def open(self, *layers: int) -> None:
        self.gates[list(layers)] = GATE_VALUE
        self.driver.notify()

    def wait(self, layer: int = -1, timeout_microseconds: int = -1) -> bool:
        return self.driver.wait(self.ticket + layer % self.layers, timeout_microseconds)

    def cancel(self, layer: int) -> bool:
        return self.driver.cancel(self.ticket + layer)

    def untouched(self, layer: int) -> bool:
        return self.done[layer] == 0 and bool(self.outputs[layer].isnan().all())

    def computed(self, layer: int) -> bool:
        return self.done[layer] == DONE_VALUE and torch.equal(self.outputs[layer], self.expected[layer])


@pytest.fixture(autouse=True)
def _end_jobs() -> Iterator[None]:
    # A deadlock that holds the interpreter's lock outlives pytest's own time limit.
    faulthandler.dump_traceback_later(60, exit=True)
    yield
    for jobs in Jobs.of_this_test:
        if hasattr(jobs, "driver"):
            jobs.end()
    Jobs.of_this_test.clear()
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def driver() -> _native.AttentionDriver:
    return _native.AttentionDriver(20)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("threads", [1, 3])
def test_computes_what_a_plain_call_does(
    driver: _native.AttentionDriver, threads: int, instruction_set: str
) -> None:
    jobs = Jobs(driver, Storage(SMALL, instruction_set, threads))
    assert jobs.wait()
    assert jobs.states() == [DONE] * 4
    assert all(jobs.computed(layer) for layer in range(4))


def test_begins_at_any_layer(driver: _native.AttentionDriver) -> None:
    jobs = Jobs(driver, Storage(SMALL, "auto"), first_layer=2)
    jobs.wait()
    assert jobs.computed(0)
    assert jobs.computed(1)


def test_stores_keys_and_values_first(driver: _native.AttentionDriver) -> None:
    storage = Storage(Case(sequences=((1, 0), (30, 0), (90, 0)), kv=torch.int8), "auto", 2)
    expected, pages = torch.stack([storage.attend(0), storage.attend(1)]), storage.pages.copy()
    storage.pages[:] = 0xFF
    jobs = Jobs(driver, storage, kv=torch.stack([torch.cat(each) for each in storage.kv]))
    jobs.wait()
    assert np.array_equal(storage.pages, pages)
    assert torch.equal(jobs.outputs, expected)


def test_open_jobs_run_in_their_order(driver: _native.AttentionDriver) -> None:
    first, second = (Jobs(driver, Storage(SMALL, "auto")) for _ in range(2))
    assert second.ticket == first.ticket + 4
    second.wait(0)
    assert first.states() == [DONE] * 4
    second.wait(2)
    assert second.states()[:3] == [DONE] * 3


def test_gates_opened_late_and_in_another_order(driver: _native.AttentionDriver) -> None:
    jobs = Jobs(driver, Storage(SMALL, "auto"), gated=True)
    assert jobs.states() == [WAITING] * 4
    ended = set()
    for layer in (2, 0, 3, 1):
        assert not jobs.wait(layer, 500)
        assert jobs.untouched(layer)
        jobs.open(layer)
        ended.add(layer)
        assert jobs.wait(layer)
        assert jobs.states() == [DONE if each in ended else WAITING for each in range(4)]
        assert jobs.computed(layer)


def test_gates_are_noticed_without_a_word(driver: _native.AttentionDriver) -> None:
    jobs = Jobs(driver, Storage(SMALL, "auto"), gated=True)
    jobs.wait(0, 3000)  # until gates are looked at rarely
    jobs.gates[:] = GATE_VALUE
    while jobs.done[3] != DONE_VALUE:  # like a device that only sees the words
        pass
    assert all(jobs.computed(layer) for layer in range(4))


def test_only_the_gate_value_opens(driver: _native.AttentionDriver) -> None:
    jobs = Jobs(driver, Storage(SMALL, "auto"), gated=True)
    jobs.gates[0] = GATE_VALUE - 1
    jobs.gates[1] = GATE_VALUE + 1
    driver.notify()
    assert not jobs.wait(0, 2000)
    assert jobs.states() == [WAITING] * 4


def test_others_run_while_one_waits_without_a_time_limit(driver: _native.AttentionDriver) -> None:
    jobs = Jobs(driver, Storage(SMALL, "auto"), gated=True)
    opener = threading.Thread(target=jobs.open, args=range(4))
    opener.start()
    assert jobs.wait()
    opener.join()
    assert jobs.computed(3)


def test_two_plans_at_once(driver: _native.AttentionDriver) -> None:
    other = Case(sequences=((1, 500), (1, 3)), dim=96, kv=torch.int8, windows=(0,) * 4)
    both = [Jobs(driver, Storage(case, "auto", 2), gated=True) for case in (SMALL, other)]
    for layer in range(4):
        for jobs in reversed(both):
            jobs.open(layer)
    for jobs in both:
        jobs.wait()
        assert all(jobs.computed(layer) for layer in range(4))


def test_two_drivers_share_a_pool() -> None:
    pool = _native.ThreadPool(3, [], 20)
    jobs = []
    for case in (SMALL, LARGE):
        storage = Storage(case, "auto")
        storage.use(pool)
        storage.prepare()
        jobs.append(Jobs(_native.AttentionDriver(0), storage))
    for each in jobs:
        each.wait()
        assert all(each.computed(layer) for layer in range(each.layers))


def test_event_is_raised_for_each_job(driver: _native.AttentionDriver) -> None:
    event_fd = os.eventfd(0)
    jobs = Jobs(driver, Storage(SMALL, "auto"), gated=True, event_fd=event_fd)
    jobs.cancel(1)
    jobs.open(0)
    assert os.eventfd_read(event_fd) == 1
    assert jobs.states()[0] == DONE
    jobs.open(2, 3)
    jobs.wait()
    assert os.eventfd_read(event_fd) == 2
    os.close(event_fd)


def test_a_closed_event_does_no_harm(driver: _native.AttentionDriver) -> None:
    event_fd = os.eventfd(0)
    jobs = Jobs(driver, Storage(SMALL, "auto"), gated=True, event_fd=event_fd)
    os.close(event_fd)
    jobs.open(*range(4))
    assert jobs.wait()


def test_cancel_what_waits(driver: _native.AttentionDriver) -> None:
    jobs = Jobs(driver, Storage(SMALL, "auto"), gated=True)
    assert jobs.cancel(1)
    assert jobs.cancel(3)
    assert jobs.wait(1)
    jobs.open(*range(4))
    assert jobs.wait(2)
    assert jobs.states() == [DONE, CANCELLED, DONE, CANCELLED]
    assert jobs.untouched(1)
    assert jobs.untouched(3)
    assert jobs.computed(0)
    assert jobs.computed(2)
    assert jobs.cancel(1), "it still is"


def test_cancel_what_runs_or_is_done(driver: _native.AttentionDriver) -> None:
    jobs = Jobs(driver, Storage(LARGE, "scalar"))
    while jobs.states()[0] == WAITING:
        pass
    assert not jobs.cancel(0)
    assert jobs.cancel(2) == (jobs.states()[2] == CANCELLED)
    assert jobs.wait(1)
    assert not jobs.cancel(0)
    assert jobs.states()[:2] == [DONE] * 2
    assert jobs.computed(0)
    assert jobs.computed(1)


def test_tickets_never_given_out(driver: _native.AttentionDriver) -> None:
    jobs = Jobs(driver, Storage(SMALL, "auto"))
    for ticket in (-1, jobs.ticket + 4):
        with pytest.raises(IndexError):
            driver.state(ticket)
        with pytest.raises(IndexError):
            driver.wait(ticket, 0)
        with pytest.raises(IndexError):
            driver.cancel(ticket)


def test_layers_that_are_not(driver: _native.AttentionDriver) -> None:
    storage = Storage(SMALL, "auto")
    for first_layer, layers in ((-1, 1), (1, 4)):
        with pytest.raises(IndexError, match="layer"):
            driver.submit(
                storage.plan, first_layer=first_layer, layers=layers, kv=0, kv_stride=0, queries=0, outputs=0,
                stride=0, gates=0, gate_value=0, done=0, done_value=0, event_fd=-1,
            )  # fmt: skip


def test_more_jobs_than_can_wait(driver: _native.AttentionDriver) -> None:
    storage = Storage(TINY, "auto")
    waiting = [Jobs(driver, storage, gated=True) for _ in range(CAPACITY // 64 - 1)]
    half = Jobs(driver, storage, gated=True, first_layer=32)
    with pytest.raises(ValueError, match="too many"):
        Jobs(driver, storage, gated=True)
    last = Jobs(driver, storage, gated=True, first_layer=32)
    assert last.ticket == half.ticket + 32, "none of those refused was taken"
    for jobs in (*waiting, half, last):
        jobs.open(*range(jobs.layers))
    last.wait()
    assert last.states() == [DONE] * 32
    assert all((jobs.done == DONE_VALUE).all() for jobs in waiting)
    again = Jobs(driver, storage)
    again.wait()
    assert waiting[0].states() == [DONE] * 64, "long past"


def test_cancelled_jobs_make_room_at_once(driver: _native.AttentionDriver) -> None:
    storage = Storage(TINY, "auto")
    waiting = [Jobs(driver, storage, gated=True) for _ in range(CAPACITY // 64)]
    for jobs in waiting:
        for layer in range(64):
            jobs.cancel(layer)
    assert Jobs(driver, storage).wait()


@pytest.mark.parametrize("gated", [True, False])
def test_destroyed_with_jobs(gated: bool) -> None:
    """They have run, or are as good as never submitted; plan and buffers are their owner's again."""
    jobs = Jobs(_native.AttentionDriver(20), Storage(LARGE, "auto"), gated=gated)
    del jobs.driver
    gone = [jobs.untouched(layer) for layer in range(3)]
    assert all(gone) or not gated
    for layer in range(3):
        assert gone[layer] or jobs.computed(layer)


def test_states_polled_and_drivers_destroyed_while_jobs_end() -> None:
    """Letting go of plans must not take the interpreter's lock, which the driver's caller has."""
    storage = Storage(Case(sequences=((1, 0),), windows=(0, 0)), "auto")
    driver = _native.AttentionDriver(20)
    for _ in range(300):
        jobs = Jobs(driver, storage)
        while jobs.states()[1] != DONE:
            pass
    for _ in range(100):
        jobs = Jobs(_native.AttentionDriver(20), storage)
        while jobs.done[1] != DONE_VALUE:
            pass
        del jobs.driver


@pytest.mark.parametrize("end", ["", "del plan", "driver.cancel(0)", "gates[:] = 1"])
def test_interpreter_ends_before_the_driver(end: str) -> None:
    program = f"""
import ctypes, numpy
from engine.kernels import _native
pages, rows = numpy.zeros((2, 64), dtype=numpy.float32), numpy.ones((3, 64), dtype=numpy.float32)
gates, one, table = numpy.zeros(64, dtype=numpy.uint32), numpy.array([1, 0]), numpy.array([0, 1, 0])
ctypes.pythonapi.Py_IncRef(ctypes.py_object([pages, rows, gates]))  # buffers outlive the jobs
context = _native.AttentionContext(
    _native.ThreadPool(2, [], 20), "auto", layers=1, heads=1, kv_heads=1, dim=64, page_size=1, kv_format=0,
    io_format=0, scale=1.0, softcap=0.0, windows=[0], pages=pages.ctypes.data, num_pages=1,
)
plan = _native.AttentionPlan(context)
plan.prepare(1, one.ctypes.data, one[1:].ctypes.data, table.ctypes.data, table[2:].ctypes.data)
driver = _native.AttentionDriver(20)
for i in range(64):
    driver.submit(
        plan, first_layer=0, layers=1, kv=0, kv_stride=0, stride=0, done=0, done_value=0, event_fd=-1,
        queries=rows.ctypes.data, outputs=rows[1].ctypes.data, gates=gates.ctypes.data, gate_value=1,
    )
{end}
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


@pytest.mark.parametrize("gated", [True, False])
def test_idle_driver_uses_no_cpu(gated: bool, driver: _native.AttentionDriver) -> None:
    jobs = Jobs(driver, Storage(SMALL, "auto", 2), gated=gated)
    jobs.wait(timeout_microseconds=20_000)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.05
    assert jobs.states() == [WAITING if gated else DONE] * 4

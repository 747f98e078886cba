"""The pool's threads: their number, callers that take turns, and that idle ones sleep."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import torch

from engine.kernels import _native
from tests.kernels.attention_case import INSTRUCTION_SETS, Case, Storage


@pytest.mark.parametrize(("threads", "cpus"), [(0, []), (-1, []), (2, [0]), (3, [0, 0])])
def test_numbers_that_make_no_pool(threads: int, cpus: list[int]) -> None:
    with pytest.raises(ValueError):
        _native.ThreadPool(threads, cpus, 0)


def thread_ids() -> set[str]:
    return {path.name for path in Path("/proc/self/task").iterdir()}


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_threads_begin_and_end_with_the_pool(threads: int) -> None:
    before = thread_ids()
    pool = _native.ThreadPool(threads, [], 0)
    assert pool.threads == threads
    begun = thread_ids() - before
    assert len(begun) == threads - 1
    del pool
    while begun & thread_ids():  # the system forgets a joined thread a moment later
        time.sleep(0.001)


def test_pinned_threads_compute_the_same() -> None:
    storage = Storage(Case(sequences=((1, 1000), (70, 0))), INSTRUCTION_SETS[0])
    expected = storage.attend()
    cpu = min(os.sched_getaffinity(0))
    storage.use(_native.ThreadPool(3, [cpu] * 3, 0))
    storage.prepare()
    assert torch.equal(storage.attend(), expected)


@pytest.mark.parametrize("spin", [0, 50])
def test_callers_take_turns(spin: int) -> None:
    """Contexts have scratch memory that one call at a time may use; plans of other threads share it."""
    storage = Storage(Case(sequences=((1, 700), (20, 30))), INSTRUCTION_SETS[0])
    expected = storage.attend()
    pool = _native.ThreadPool(3, [], spin)
    storage.use(pool)
    plans = []
    for _ in range(3):
        storage.plan = _native.AttentionPlan(storage.context)
        storage.prepare()
        plans.append(storage.plan)
    queries, failures = storage.queries[0], []

    def call(plan: _native.AttentionPlan) -> None:
        for _ in range(100):
            output = torch.full_like(queries, torch.nan)
            plan.attend(0, queries.data_ptr(), output.data_ptr())
            if not torch.equal(output, expected):
                failures.append(output)

    threads = [threading.Thread(target=call, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_bandwidth_is_a_number(instruction_set: str) -> None:
    assert _native.ThreadPool(2, [], 0).read_bandwidth(instruction_set, 4 << 20, 2) > 0


def test_idle_threads_use_no_cpu() -> None:
    pool = _native.ThreadPool(4, [], 20)
    pool.read_bandwidth("auto", 4 << 20, 1)
    time.sleep(0.02)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.05
    assert pool.threads == 4

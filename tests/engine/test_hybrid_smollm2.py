"""SmolLM2 in float32 on two tiers gives the tokens it gives on the CPU alone."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable

import pytest
import torch

from engine.attention.choice import host_attention
from engine.devices.base import Device
from engine.devices.checked import CheckedDevice
from engine.devices.emulated import EmulatedDevice
from engine.kernels.loader import load_kernels
from engine.kv_storage import KVStorage
from engine.model_loader import load_model
from engine.model_runner import ModelRunner
from engine.models.decoder import DecoderModel
from engine.torch_executor import TorchExecutor
from engine.weights.check import open_checkpoint
from engine.weights.source import resolve
from scheduler.plan import PlanMode
from scheduler.scheduler import Limits, Scheduler
from scheduler.types import Request
from tests.builders.costs import EMULATED
from tests.engine.hybrid_serving import (
    MODES,
    OVERLAPPING,
    Serving,
    Tokens,
    draw_requests,
    length,
    make_limits,
    make_request,
    pages_needed,
    spread,
)

PAGE_SIZE = 8
VOCABULARY = 40_000

CpuOnly = Callable[[Iterable[Request]], Tokens]
minutes = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def smollm2() -> DecoderModel:
    return load_model(open_checkpoint(resolve("smollm2-135m-instruct")), torch.float32)


@pytest.fixture(scope="module")
def cpu_only(smollm2: DecoderModel) -> CpuOnly:
    """Serves requests without an accelerator, all together, and remembers their tokens."""
    known: dict[tuple[int, ...], list[int]] = {}

    def serve(requests: Iterable[Request]) -> Tokens:
        requests = tuple(requests)
        new = [request for request in requests if request.prompt_token_ids not in known]
        if new:
            tokens = serve_on_cpu(smollm2, new)
            known.update((one.prompt_token_ids, tokens[one.request_id, 0]) for one in new)
        return {
            (one.request_id, index): known[one.prompt_token_ids][: one.sampling.max_tokens]
            for one in requests
            for index in range(one.n)
        }

    return serve


def serve_on_cpu(model: DecoderModel, requests: list[Request]) -> Tokens:
    limits = Limits(
        host_pages=pages_needed(requests, PAGE_SIZE) + 1, page_size=PAGE_SIZE, max_running=64,
        max_batch_tokens=256, context_length=max(map(length, requests)) + 1,
    )  # fmt: skip
    storage = KVStorage(model.config, limits.host_pages, PAGE_SIZE, model.dtype)
    attention = host_attention(model.config, storage, model.dtype, load_kernels("auto", 1))
    executor = TorchExecutor(ModelRunner(model, storage, attention), ())
    scheduler = Scheduler(limits)
    tokens: Tokens = {}
    for request in requests:
        scheduler.add(request)
    while (plan := scheduler.schedule()) is not None:
        executor.submit(plan)
        for output in scheduler.commit(plan, executor.collect()):
            tokens.setdefault((output.request_id, output.index), []).extend(output.token_ids)
    executor.close()
    return tokens


def serve(
    model: DecoderModel, device: Device, requests: list[Request], mode: PlanMode | None, *,
    budget: float, host: float, page_size: int = PAGE_SIZE, native: bool = True,
) -> Serving:  # fmt: skip
    limits = make_limits(requests, mode, device=budget, host=host, page_size=page_size)
    serving = Serving(model, device, limits, EMULATED, mode, native=native)
    serving.run(spread(requests, 1, iterations=4))
    serving.close()
    return serving


@pytest.mark.parametrize("mode", [None, PlanMode.ASYNC_OVERLAP])
def test_8_requests(smollm2: DecoderModel, cpu_only: CpuOnly, mode: PlanMode | None):
    requests = draw_requests(8, 1, VOCABULARY, longest=60, outputs=(4, 12))
    serving = serve(smollm2, EmulatedDevice(None), requests, mode, budget=0.25, host=1.0)
    assert serving.counts["host tokens"] > 0
    assert serving.tokens == cpu_only(requests)


@pytest.mark.slow
@minutes
@pytest.mark.parametrize("budget", [0.05, 0.25, 1.0])
def test_64_requests_in_every_mode(smollm2: DecoderModel, cpu_only: CpuOnly, budget: float):
    requests = draw_requests(64, 1, VOCABULARY, longest=48, outputs=(8, 24))
    host = 0.0 if budget == 0.05 else 1.0
    host_tokens = migrations = preemptions = 0
    for mode in MODES:
        serving = serve(smollm2, EmulatedDevice(None), requests, mode, budget=budget, host=host)
        assert serving.tokens == cpu_only(requests), mode
        host_tokens += serving.counts["host tokens"]
        migrations += sum(serving.migrations)
        preemptions += serving.preemptions
    assert (host_tokens > 0) is (budget < 1.0)
    assert (migrations > 0) is (budget < 1.0)
    assert (preemptions > 0) is (budget == 0.05)


@pytest.mark.slow
@minutes
@pytest.mark.parametrize("first", range(0, 210, 15))
def test_64_requests_in_210_legal_orders(smollm2: DecoderModel, cpu_only: CpuOnly, first: int):
    """Each order with the next budget and mode: every pair of them once in fifteen."""
    requests = draw_requests(64, 1, VOCABULARY, longest=12, outputs=(4, 12))
    host_tokens = migrations = preemptions = 0
    for seed in range(first, first + 15):
        budget, host = ((0.05, 0.0), (0.25, 0.2), (1.0, 0.2))[seed // len(MODES) % 3]
        mode = MODES[seed % len(MODES)]
        serving = serve(
            smollm2, CheckedDevice(seed), requests, mode, budget=budget, host=host, page_size=4, native=False
        )
        assert serving.tokens == cpu_only(requests), (seed, mode, budget)
        host_tokens += serving.counts["host tokens"]
        migrations += sum(serving.migrations)
        preemptions += serving.preemptions
    assert host_tokens and migrations and preemptions


@pytest.mark.slow
@minutes
@pytest.mark.parametrize("mode", OVERLAPPING)
def test_a_prompt_three_times_the_device_tier(
    smollm2: DecoderModel, cpu_only: CpuOnly, mode: PlanMode | None
):
    limits = Limits(
        host_pages=256, device_pages=32, page_size=PAGE_SIZE, max_running=8, max_batch_tokens=256,
        context_length=1024,
    )  # fmt: skip
    long = make_request("long", random_prompt(random.Random(3), 3 * 32 * PAGE_SIZE), output=16)
    requests = [long, *draw_requests(6, 2, VOCABULARY, longest=40, outputs=(4, 16))]
    serving = Serving(smollm2, EmulatedDevice(None), limits, EMULATED, mode, native=True)
    assert serving.run({0: requests}) == cpu_only(requests)
    serving.close()
    assert serving.counts["host tokens"] >= 15


@pytest.mark.slow
@minutes
@pytest.mark.parametrize("repeats", [1, 10], ids=["", "cpu ten times slower"])
def test_a_minute_of_new_arrivals(smollm2: DecoderModel, repeats: int):
    """Every host row advances, and the paced accelerator hardly ever waits."""
    limits = Limits(
        host_pages=1600, device_pages=32, page_size=PAGE_SIZE, max_running=24, max_batch_tokens=64,
        context_length=2048,
    )  # fmt: skip
    rng = random.Random(4)
    serving = Serving(
        smollm2, EmulatedDevice(EMULATED), limits, EMULATED, native=True, repeats=repeats, paced=True
    )
    rows = [make_request(f"row {number}", random_prompt(rng, 260), output=1700) for number in range(6)]
    newcomers: list[Request] = []
    for row in rows:
        serving.scheduler.add(row)
    clock = [time.monotonic()]
    while clock[-1] < clock[0] + 60:
        if serving.scheduler.stats(None, 0.0).sequences_waiting < 3:
            newcomers.append(make_request(f"new {len(newcomers)}", random_prompt(rng, 24), output=12))
            serving.scheduler.add(newcomers[-1])
        assert serving.step()
        clock.append(time.monotonic())
    gaps = []
    for row in rows:
        times = [clock[iteration] for iteration in serving.when[row.request_id]]
        between = [after - before for before, after in itertools.pairwise([*times, clock[-1]])]
        assert max(between) < 10, f"{row.request_id}: {len(times)} tokens"
        gaps += between
    gaps.sort()
    waited = serving.waited_for_host / (clock[-1] - clock[0])
    print(
        f"host rows: {len(gaps)} token gaps, median {1e3 * gaps[len(gaps) // 2]:.0f} ms, "
        f"p99 {1e3 * gaps[len(gaps) * 99 // 100]:.0f} ms, longest {1e3 * gaps[-1]:.0f} ms; "
        f"{len(newcomers)} newcomers; waited for the CPU {waited:.2%}"
    )
    assert waited < 0.02
    for request in (*rows, *newcomers):
        serving.abort(request.request_id)
    while serving.step():
        pass
    serving.close()


def random_prompt(rng: random.Random, tokens: int) -> tuple[int, ...]:
    return tuple(rng.randrange(100, VOCABULARY) for _ in range(tokens))

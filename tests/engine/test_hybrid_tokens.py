"""Scheduler, planner and executor together: the tokens of a model with one tier, whatever the plans."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial

import pytest

from engine.devices.base import Device, Event
from engine.devices.checked import CheckedDevice
from engine.devices.cpu import CpuDevice
from engine.devices.emulated import EmulatedDevice
from engine.models.decoder import DecoderModel
from scheduler.plan import PlanMode
from scheduler.scheduler import Limits
from scheduler.tier import Tier
from scheduler.types import Request
from tests.builders.costs import AnalyticCosts
from tests.builders.tiny_models import VOCABULARY
from tests.engine.hybrid_harness import greedy_alone
from tests.engine.hybrid_serving import (
    MODES,
    OVERLAPPING,
    PAGE_SIZE,
    Serving,
    Tokens,
    draw_requests,
    make_limits,
    make_request,
    spread,
)

Alone = Callable[[Request], list[int]]
PATIENCE = 8
"""Iterations for which the planner may leave a host row out."""


@pytest.fixture(scope="module")
def alone(model: DecoderModel) -> Alone:
    """A request's tokens, computed without tiers."""
    known: dict[tuple[int, ...], list[int]] = {}

    def tokens(request: Request) -> list[int]:
        prompt, output = request.prompt_token_ids, request.sampling.max_tokens
        if len(known.get(prompt, ())) < output:
            known[prompt] = greedy_alone(model, list(prompt), output)
        return known[prompt][:output]

    return tokens


def costs(model: DecoderModel) -> AnalyticCosts:
    return AnalyticCosts(layers=len(model.layers))


def check(tokens: Tokens, requests: list[Request], alone: Alone) -> None:
    for request in requests:
        for index in range(request.n):
            assert tokens[request.request_id, index] == alone(request), (request.request_id, index)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("budget", [0.05, 0.25, 1.0])
def test_64_requests(model: DecoderModel, alone: Alone, budget: float, mode: PlanMode | None):
    requests = draw_requests(64, seed=1, vocabulary=VOCABULARY, longest=30, outputs=(3, 14))
    limits = make_limits(requests, mode, device=budget, host=0.03 if budget == 0.05 else 1.0)
    serving = Serving(model, CheckedDevice(seed=7), limits, costs(model), mode)
    check(serving.run(spread(requests, 1, iterations=4)), requests, alone)
    serving.close()
    assert (sum(serving.migrations) > 0) is (budget == 0.05 or (budget == 0.25 and mode in OVERLAPPING))
    assert (serving.preemptions > 0) is (budget == 0.05 and mode in OVERLAPPING)
    assert (serving.counts["host tokens"] > 0) is (budget < 1.0 and mode in OVERLAPPING)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("budget", [0.05, 0.25])
def test_in_any_legal_order(model: DecoderModel, alone: Alone, budget: float, mode: PlanMode | None):
    """With those of the other tests more than 200, since every seed and every run makes another one."""
    migrations = preemptions = 0
    for seed in range(8):
        requests = draw_requests(4, seed % 3, VOCABULARY, longest=20, outputs=(4, 12))
        host = 0.5 if mode in OVERLAPPING or budget == 0.05 else 0.0
        limits = make_limits(requests, mode, device=budget, host=host)
        serving = Serving(model, CheckedDevice(seed), limits, costs(model), mode)
        check(serving.run(spread(requests, seed, iterations=2)), requests, alone)
        serving.close()
        migrations += sum(serving.migrations)
        preemptions += serving.preemptions
    assert migrations > 0 or host == 0 or budget == 0.05
    assert (preemptions > 0) is (mode in OVERLAPPING or host == 0)


@pytest.mark.parametrize("mode", MODES)
def test_with_threads_and_the_native_driver(model: DecoderModel, alone: Alone, mode: PlanMode | None):
    for seed in range(2):
        requests = draw_requests(12, seed, VOCABULARY, longest=40, outputs=(4, 16))
        limits = make_limits(requests, mode, device=0.2, host=0.5)
        serving = Serving(model, EmulatedDevice(None), limits, costs(model), mode, native=True)
        check(serving.run(spread(requests, seed, iterations=4)), requests, alone)
        serving.close()
        assert (serving.counts["host tokens"] > 0) is (mode in OVERLAPPING)


@pytest.mark.parametrize("native", [False, True], ids=["checked", "native"])
@pytest.mark.parametrize("mode", MODES)
def test_aborts_at_any_time(model: DecoderModel, alone: Alone, mode: PlanMode | None, native: bool):
    for seed in range(2):
        rng = random.Random(seed)
        requests = draw_requests(16, seed, VOCABULARY, longest=30, outputs=(4, 16))
        limits = make_limits(requests, mode, device=0.1, host=0.2)
        device = EmulatedDevice(None) if native else CheckedDevice(seed)
        serving = Serving(model, device, limits, costs(model), mode, native=native)

        def abort(serving: Serving = serving, rng: random.Random = rng) -> None:
            live = sorted({one.request.request_id for one in serving.running})
            if live and rng.random() < 0.4:
                serving.abort(rng.choice(live))

        tokens = serving.run(spread(requests, seed, iterations=8), abort)
        serving.close()
        reasons = set()
        for request in requests:
            for index in range(request.n):
                expected, reason = alone(request), serving.ended[request.request_id, index]
                reasons.add(reason)
                whole = tokens[request.request_id, index]
                assert whole == (expected if reason == "length" else expected[: len(whole)])
        assert reasons == {"length", "abort"}


@pytest.mark.parametrize("model", ["llama"], indirect=True)
@pytest.mark.parametrize("mode", OVERLAPPING)
def test_a_prompt_three_times_the_device_tier(model: DecoderModel, alone: Alone, mode: PlanMode | None):
    limits = Limits(
        host_pages=64, device_pages=8, page_size=PAGE_SIZE, max_running=8, max_batch_tokens=24,
        context_length=128,
    )  # fmt: skip
    rng = random.Random(3)
    prompt = tuple(rng.randrange(3, VOCABULARY) for _ in range(3 * 8 * PAGE_SIZE))
    long = make_request("long", prompt, output=12)
    requests = [long, *draw_requests(6, 2, VOCABULARY, longest=12, outputs=(4, 12))]
    serving = Serving(model, CheckedDevice(seed=4), limits, costs(model), mode)
    check(serving.run({0: requests}), requests, alone)
    assert serving.counts["host tokens"] >= 11
    serving.close()


@pytest.mark.parametrize(
    ("make_device", "longest"),
    [
        pytest.param(CpuDevice, 2 * PATIENCE, id="cpu"),
        pytest.param(partial(CheckedDevice, 11), 40, id="checked"),
    ],
)
@pytest.mark.parametrize("model", ["llama"], indirect=True)
@pytest.mark.parametrize("mode", OVERLAPPING)
def test_nobody_starves_while_the_device_is_saturated(
    model: DecoderModel, mode: PlanMode | None, make_device: Callable[[], Device], longest: int
):
    """Rows too long for the device stay in the host tier, and newcomers never let the device rest."""
    limits = Limits(
        host_pages=500, device_pages=12, page_size=PAGE_SIZE, max_running=16, max_batch_tokens=24,
        context_length=256,
    )  # fmt: skip
    rng = random.Random(3)
    serving = Serving(model, make_device(), limits, costs(model), mode)
    prompts = [tuple(rng.randrange(3, VOCABULARY) for _ in range(50)) for _ in range(4)]
    rows = [make_request(f"row {number}", prompt, output=150) for number, prompt in enumerate(prompts)]
    newcomers: list[Request] = []
    for row in rows:
        serving.scheduler.add(row)
    for iteration in range(1, 91):
        if serving.scheduler.stats(None, 0.0).sequences_waiting < 3:
            prompt = tuple(rng.randrange(3, VOCABULARY) for _ in range(8))
            newcomers.append(make_request(f"new {iteration}", prompt, output=8))
            serving.scheduler.add(newcomers[-1])
        assert serving.step()
        assert iteration < 15 or any(one.tier is Tier.DEVICE for one in serving.running)
    for row in rows:
        gaps = itertools.pairwise([0, *serving.when[row.request_id], serving.iteration])
        assert max(after - before for before, after in gaps) <= longest, row.request_id
    assert sum((one.request_id, 0) in serving.ended for one in newcomers) > 20
    for request in (*rows, *newcomers):
        serving.abort(request.request_id)
    while serving.step():
        pass
    serving.close()


@pytest.mark.parametrize("model", ["llama"], indirect=True)
@pytest.mark.parametrize("mode", OVERLAPPING)
def test_a_cpu_ten_times_slower_stalls_nobody(model: DecoderModel, alone: Alone, mode: PlanMode | None):
    """The accelerator waits for nothing but copies that wait for nothing."""
    device = EmulatedDevice(None)
    copies: list[Event] = []
    record, wait = device.upload.record, device.compute.wait

    def recorded() -> Event:
        copies.append(record())
        return copies[-1]

    def waits_for(event: Event) -> None:
        assert event in copies
        wait(event)

    def never(event: Event) -> None:
        raise AssertionError("an upload waits")

    device.upload.record, device.upload.wait, device.compute.wait = recorded, never, waits_for
    requests = draw_requests(12, 5, VOCABULARY, longest=40, outputs=(4, 20))
    limits = make_limits(requests, mode, device=0.2, host=1.0)
    serving = Serving(model, device, limits, costs(model), mode, native=True, repeats=10)
    check(serving.run(spread(requests, 5, iterations=4)), requests, alone)
    serving.close()
    assert serving.counts["host tokens"] > 0

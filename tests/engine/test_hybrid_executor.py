"""The hybrid executor by itself: same tokens whatever is drawn, on every kind of device."""

from __future__ import annotations

import random

import pytest

from engine.devices.base import Device
from engine.devices.checked import CheckedDevice
from engine.devices.cpu import CpuDevice
from engine.devices.emulated import EmulatedDevice
from engine.models.decoder import DecoderModel
from scheduler.plan import PlanMode
from tests.builders.tiny_models import VOCABULARY
from tests.engine.hybrid_harness import OUTPUT, Harness, greedy_alone, make_executor

Expected = dict[tuple[int, ...], list[int]]


@pytest.fixture(scope="module")
def expected(model: DecoderModel) -> Expected:
    rng = random.Random(5)
    prompts = [tuple(rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, 40))) for _ in range(12)]
    return {prompt: greedy_alone(model, list(prompt), OUTPUT) for prompt in prompts}


def serve(
    model: DecoderModel, expected: Expected, device: Device, seed: int, native: bool = False,
    mode: PlanMode | None = None,
) -> Harness:  # fmt: skip
    executor, tiers = make_executor(model, device, device_pages=30, host_pages=40, native=native)
    harness = Harness(executor, tiers, expected, seed, mode)
    harness.run()
    executor.close()
    return harness


@pytest.mark.parametrize("seed", range(4))
def test_synchronously(model: DecoderModel, expected: Expected, seed: int):
    harness = serve(model, expected, CpuDevice(), seed)
    assert min(harness.counts.values()) > 0, harness.counts


@pytest.mark.parametrize("seed", range(20))
def test_in_any_legal_order(model: DecoderModel, expected: Expected, seed: int):
    serve(model, expected, CheckedDevice(seed), seed)


@pytest.mark.parametrize("seed", range(4))
def test_on_threads(model: DecoderModel, expected: Expected, seed: int):
    serve(model, expected, EmulatedDevice(None), seed)


@pytest.mark.parametrize("seed", range(6))
def test_with_the_native_driver(model: DecoderModel, expected: Expected, seed: int):
    serve(model, expected, EmulatedDevice(None), seed, native=True)

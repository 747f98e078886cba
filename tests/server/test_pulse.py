"""When an engine is stalled: what it says and does not say, second by second."""

from __future__ import annotations

import httpx
import pytest

from server.app import create_app
from server.engine_client.pulse import EngineHealth, Pulse
from tests.server.fakes import FakeEngine, make_services

LIMIT = 20.0


def beats(pulse: Pulse, first: int, last: int, cpu: float) -> None:
    """One a second, each after ``cpu`` more seconds of CPU time."""
    for second in range(first, last + 1):
        pulse.beat(100.0 + second, cpu * second)


def test_an_idle_engine_is_well_whatever_it_says() -> None:
    pulse = Pulse(LIMIT)
    assert pulse.health(1000.0, 0) == EngineHealth(False, 0, None, None)
    beats(pulse, 0, 5, cpu=0.0)
    health = pulse.health(1000.0, 0)
    assert not health.stalled and health.heartbeat_age == 895.0


@pytest.mark.parametrize(("second", "stalled"), [(20, False), (21, True)])
def test_a_stopped_engine_has_until_the_limit(second: int, stalled: bool) -> None:
    pulse = Pulse(LIMIT)
    pulse.work_began(100.0)
    assert pulse.health(100.0 + second, 1).stalled == stalled


def test_iterations_are_progress() -> None:
    pulse = Pulse(LIMIT)
    pulse.work_began(100.0)
    pulse.iteration(115.0)
    assert not pulse.health(130.0, 1).stalled
    assert pulse.health(136.0, 1).stalled
    pulse.iteration(137.0)
    health = pulse.health(138.5, 2)
    assert not health.stalled and health.iteration_age == 1.5 and health.requests == 2


def test_idle_time_before_is_no_stall() -> None:
    pulse = Pulse(LIMIT)
    pulse.iteration(100.0)
    pulse.work_began(500.0)
    assert not pulse.health(510.0, 1).stalled


def test_a_long_iteration_that_computes_is_no_stall_for_a_while() -> None:
    pulse = Pulse(LIMIT)
    pulse.work_began(100.0)
    beats(pulse, 0, 300, cpu=1.7)
    assert not pulse.health(300.0, 1).stalled
    assert pulse.health(301.0, 1).stalled


def test_a_process_that_runs_and_computes_nothing_is_stalled() -> None:
    pulse = Pulse(LIMIT)
    pulse.work_began(100.0)
    beats(pulse, 0, 30, cpu=0.001)
    assert pulse.health(130.0, 1).stalled


def test_another_process_begins_anew() -> None:
    pulse = Pulse(LIMIT)
    pulse.work_began(100.0)
    beats(pulse, 0, 3, cpu=1.0)
    pulse.reset()
    pulse.work_began(200.0)
    assert pulse.health(201.0, 1) == EngineHealth(False, 1, None, None)


@pytest.mark.anyio
async def test_health_tells_of_a_stall() -> None:
    engine = FakeEngine(health=EngineHealth(True, 3, 21.23456, 25.0))
    transport = httpx.ASGITransport(create_app(make_services(engine)))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.get("/health")
    assert answer.status_code == 503
    assert answer.json() == {
        "status": "stalled",
        "engine": "ready",
        "requests": 3,
        "heartbeat_age": 21.235,
        "iteration_age": 25.0,
    }

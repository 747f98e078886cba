"""The checked device finds every missing wait, whatever order it draws, and accepts every legal program."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.devices.base import Buffer
from engine.devices.checked import CheckedDevice
from engine.devices.hazards import HazardError, StallError
from scheduler.work import Stage, Work
from tests.engine.device_programs import STREAMS, finish

SEEDS = range(200)
ATTENTION = (Work(Stage.HOST_ATTENTION, rows=1),)


def nothing() -> None:
    """An operation."""


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ({"writes": ["kv"]}, {"reads": ["kv"]}, "reads 'kv', which download 1 .* writes"),
        ({"reads": ["kv"]}, {"writes": ["kv"]}, "writes 'kv', which download 1 .* reads"),
        ({"writes": ["kv"]}, {"writes": ["kv"]}, "writes 'kv', which download 1 .* writes"),
    ],
    ids=["read after write", "write after read", "write after write"],
)
def test_each_kind_of_hazard_in_any_order(first: dict, second: dict, words: str):
    for seed in SEEDS:
        device = CheckedDevice(seed)
        device.download.launch(nothing, **first)
        event = device.download.record()
        with pytest.raises(HazardError, match=f"compute 1 .* {words}"):
            device.compute.launch(nothing, **second)
        with pytest.raises(HazardError, match=f"the host .* {words}"):
            device.host_touches(**second)
        device.compute.wait(event)
        device.compute.launch(nothing, **second)
        finish(device, event)
        if "reads" in second:
            device.host_touches(**second)
        device.close()


def test_two_readers_are_no_hazard_but_a_writer_waits_for_both():
    device = CheckedDevice(0)
    device.download.launch(nothing, reads=["page"])
    device.upload.launch(nothing, reads=["page"])
    device.compute.wait(device.download.record())
    with pytest.raises(HazardError, match="upload 1"):
        device.compute.launch(nothing, writes=["page"])
    device.compute.wait(device.upload.record())
    device.compute.launch(nothing, writes=["page"])
    device.close()


def test_an_event_recorded_too_early_does_not_help():
    device = CheckedDevice(0)
    early = device.download.record()
    device.download.launch(nothing, writes=["page"])
    device.compute.wait(early)
    with pytest.raises(HazardError):
        device.compute.launch(nothing, reads=["page"])
    device.close()


def test_what_the_host_wrote_is_there_for_all_that_it_launches():
    device = CheckedDevice(0)
    device.host_touches(writes=["table"])
    device.compute.launch(nothing, reads=["table"])
    with pytest.raises(HazardError, match=r"the host .* writes 'table', which compute 1"):
        device.host_touches(writes=["table"])
    finish(device, device.compute.record())
    device.host_touches(writes=["table"])
    device.close()


def test_the_host_knows_only_what_it_has_seen():
    """An event that has come to pass orders nothing until the host has asked for it."""
    device = CheckedDevice(0)
    device.download.launch(nothing, writes=["page"])
    event = device.download.record()
    while not event.done:
        device.wait(0.0)
    with pytest.raises(HazardError):
        device.compute.launch(nothing, reads=["page"])
    assert event.query()
    device.compute.launch(nothing, reads=["page"])
    device.close()


def test_the_accelerator_may_not_wait_for_host_attention():
    for seed in SEEDS:
        device = CheckedDevice(seed)
        ran = []
        device.host.launch(lambda ran=ran: ran.append(1), ATTENTION)
        device.upload.wait(device.host.record())
        device.upload.launch(nothing)
        event = device.upload.record()
        if ran:
            device.compute.wait(event)
        else:
            with pytest.raises(StallError, match=r"host 1 .host_attention"):
                device.compute.wait(event)
        finish(device, event)
        device.compute.wait(event)
        device.close()


def test_that_law_is_met_by_some_seeds_and_broken_by_others():
    """Else the test above would show half of what it says."""
    early = 0
    for seed in SEEDS:
        device = CheckedDevice(seed)
        ran = []
        device.host.launch(lambda ran=ran: ran.append(1), ATTENTION)
        early += len(ran)
        device.close()
    assert 20 < early < 180


def test_waiting_makes_progress():
    for seed in SEEDS:
        device = CheckedDevice(seed)
        done = []
        for stream in STREAMS:
            getattr(device, stream).launch(lambda done=done: done.append(1))
        while len(done) < 4:
            before = len(done)
            device.wait(3600.0)
            assert len(done) > before
        device.close()


def test_what_came_to_pass_behind_the_hosts_back_rings_the_bell():
    for seed in SEEDS:
        device = CheckedDevice(seed)
        event = device.compute.record()
        while not event.done:
            device.run_some()
        device.wait(3600.0)
        device.close()


def test_asking_makes_progress():
    for seed in SEEDS:
        device = CheckedDevice(seed)
        device.compute.launch(nothing)
        event = device.compute.record()
        assert any(event.query() for _ in range(1000))
        device.close()


def test_a_seed_is_an_order_and_seeds_differ():
    def order(seed: int) -> tuple[str, ...]:
        device = CheckedDevice(seed)
        done: list[str] = []
        for _ in range(4):
            for stream in STREAMS:
                getattr(device, stream).launch(lambda stream=stream: done.append(stream))
        finish(device, *(getattr(device, stream).record() for stream in STREAMS))
        device.close()
        return tuple(done)

    orders = [order(seed) for seed in SEEDS]
    assert orders == [order(seed) for seed in SEEDS]
    assert len(set(orders)) > 150


def test_resources_that_the_host_has_seen_done_are_forgotten():
    device = CheckedDevice(0)
    for number in range(5000):
        device.compute.launch(nothing, writes=[Buffer(f"buffer {number}")])
        if number % 10 == 9:
            finish(device, device.compute.record())
    assert len(device.hazards) <= 1024
    device.upload.launch(nothing, writes=["page"])
    with pytest.raises(HazardError):
        device.compute.launch(nothing, reads=["page"])
    device.close()


def test_what_is_refused_is_not_remembered():
    device = CheckedDevice(0)
    device.download.launch(nothing, writes=["a"])
    with pytest.raises(HazardError):
        device.compute.launch(nothing, reads=["a"], writes=["b"])
    device.upload.launch(nothing, writes=["b"])
    device.close()


@dataclass(frozen=True)
class Step:
    """An operation of a stream, or of the host, that comes after some earlier ones."""

    actor: str
    reads: frozenset[int]
    writes: frozenset[int]
    after: frozenset[int]

    def conflicts(self, earlier: Step) -> bool:
        return bool(self.writes & (earlier.reads | earlier.writes) or self.reads & earlier.writes)


RESOURCES = st.frozensets(st.integers(0, 3), max_size=2)


@st.composite
def programs(draw, *, synchronised: bool) -> list[Step]:
    """Steps, with all the waits they need or with any."""
    steps: list[Step] = []
    for number in range(draw(st.integers(1, 14))):
        step = Step(
            draw(st.sampled_from((*STREAMS, "nobody"))), draw(RESOURCES), draw(RESOURCES), frozenset()
        )
        if synchronised:
            after = {index for index, earlier in enumerate(steps) if step.conflicts(earlier)}
        else:
            after = draw(st.frozensets(st.integers(0, number - 1), max_size=2)) if number else ()
        steps.append(Step(step.actor, step.reads, step.writes, frozenset(after)))
    return steps


def first_race(steps: list[Step]) -> int | None:
    """The first step that conflicts with an earlier one it is not ordered after, by plain reachability."""
    before: list[set[int]] = []
    for number, step in enumerate(steps):
        mine = {
            index
            for index in range(number)
            # A stream keeps its order, and all that the host launches comes after what it did before.
            if index in step.after or steps[index].actor in (step.actor, "nobody")
        }
        # What the host has seen done comes before all that it launches, or does, later.
        before.append(mine.union(*(before[index] for index in mine)))
        if any(step.conflicts(steps[index]) for index in range(number) if index not in before[number]):
            return number
    return None


def run(device: CheckedDevice, steps: list[Step], values: dict[int, int]) -> None:
    """Run a program on the device, ``nobody`` being the host. A result depends on all that is read for it."""
    events: list = []
    for number, step in enumerate(steps):

        def operation(number=number, step=step) -> None:
            result = hash((number, *(values[resource] for resource in sorted(step.reads))))
            values.update(dict.fromkeys(step.writes, result))

        if step.actor == "nobody":
            finish(device, *(events[index] for index in sorted(step.after) if events[index] is not None))
            device.host_touches(step.reads, step.writes)
            operation()
            events.append(None)
            continue
        stream = getattr(device, step.actor)
        for index in sorted(step.after):
            if events[index] is not None:
                stream.wait(events[index])
        stream.launch(operation, reads=step.reads, writes=step.writes)
        events.append(stream.record())
    finish(device, *(event for event in events if event is not None))


def serial(steps: list[Step]) -> dict[int, int]:
    values = dict.fromkeys(range(4), 0)
    for number, step in enumerate(steps):
        result = hash((number, *(values[resource] for resource in sorted(step.reads))))
        values.update(dict.fromkeys(step.writes, result))
    return values


@settings(max_examples=150, deadline=None)
@given(programs(synchronised=True), st.integers(0, 10**6))
def test_any_legal_order_of_a_synchronised_program_gives_the_serial_result(steps: list[Step], seed: int):
    device = CheckedDevice(seed)
    values = dict.fromkeys(range(4), 0)
    run(device, steps, values)
    device.close()
    assert values == serial(steps)


@settings(max_examples=300, deadline=None)
@given(programs(synchronised=False), st.lists(st.integers(0, 10**6), min_size=3, max_size=3))
def test_a_missing_wait_is_found_at_launch_in_every_order(steps: list[Step], seeds: list[int]):
    race = first_race(steps)
    legal = steps if race is None else steps[:race]
    for seed in seeds:
        run_legally(seed, legal)
        if race is not None:
            with pytest.raises(HazardError):
                run_legally(seed, steps[: race + 1])


def run_legally(seed: int, steps: list[Step]) -> None:
    device = CheckedDevice(seed)
    try:
        run(device, steps, dict.fromkeys(range(4), 0))
    finally:
        device.close()

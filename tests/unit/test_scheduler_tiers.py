"""Two tiers: who is where, who moves when, and what is held until the executor has let go of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from scheduler.admission import MOVES_AT_ONCE, STAY_OUT, WORTH_MOVING
from scheduler.plan import (
    ACCELERATOR_ONLY,
    HostRow,
    IterationPlan,
    IterationResult,
    Overlap,
    PlanMode,
    Timing,
)
from scheduler.scheduler import Limits, Scheduler
from scheduler.snapshot import HostSequence, PrefillWork, Snapshot
from scheduler.tier import Tier
from scheduler.types import ChoiceOutput, FinishReason, Request, RequestId, SamplingParams, SequenceId
from tests.builders.costs import AnalyticCosts
from tests.property.hash_executor import HashExecutor, expected_output

CONTEXT = 200


def limits(**changes) -> Limits:
    values = {
        "host_pages": 64,
        "device_pages": 16,
        "page_size": 4,
        "page_bytes": 100,
        "max_running": 32,
        "max_batch_tokens": 64,
        "context_length": CONTEXT,
    }
    return Limits(**{**values, **changes})


def request(name: str, length=5, max_tokens=20, **changes) -> Request:
    return Request(
        request_id=RequestId(changes.pop("request_id", name)),
        prompt_token_ids=tuple((ord(name[0]) + place) % 50 for place in range(length)),
        sampling=SamplingParams(max_tokens=max_tokens, seed=0),
        **changes,
    )


class Engine:
    """A scheduler and an executor, stepped by hand; ``delays`` may be changed between steps."""

    def __init__(self, limits: Limits, planner=None, costs=None) -> None:
        self.delays = {"row": 0, "drop": 0, "copy": 0}
        self.scheduler = Scheduler(limits, planner, costs)
        self.executor = HashExecutor(limits.page_size, lambda what: self.delays[what])
        self.outputs: list[ChoiceOutput] = []
        self.requests: dict[str, Request] = {}
        self.names: dict[SequenceId, str] = {}
        self.result: IterationResult | None = None

    def add(self, *args, **changes) -> None:
        one = request(*args, **changes)
        self.requests[one.request_id] = one
        self.scheduler.add(one)
        for sequence in self.scheduler._requests[one.request_id].values():
            self.names[sequence.id] = one.request_id

    def abort(self, name: str) -> tuple[ChoiceOutput, ...]:
        outputs = self.scheduler.abort(RequestId(name))
        self.outputs += outputs
        return outputs

    def step(self, times: int = 1) -> IterationPlan:
        for _ in range(times):
            plan = self.scheduler.schedule()
            assert plan is not None
            self.executor.submit(plan)
            self.scheduler.think()
            self.result = self.executor.collect()
            self.outputs += self.scheduler.commit(plan, self.result)
        return plan

    def run(self) -> None:
        """To the end; then nothing is held, and every output is what it should be."""
        while (plan := self.scheduler.schedule()) is not None:
            self.executor.submit(plan)
            self.outputs += self.scheduler.commit(plan, self.executor.collect())
        stats = self.stats
        assert (stats.host_pages_used, stats.device_pages_used, stats.sequences_running) == (0, 0, 0)
        ends = {one.request_id: one.finish_reason for one in self.outputs if one.finish_reason}
        assert set(ends) == set(self.requests)
        for name, one in self.requests.items():
            expected = expected_output(one, 0, None, CONTEXT)
            whole = ends[one.request_id] is not FinishReason.ABORT
            assert self.tokens(name) == (expected if whole else expected[: len(self.tokens(name))])

    def tokens(self, name: str) -> list[int]:
        return [token for one in self.outputs if one.request_id == name for token in one.token_ids]

    def where(self) -> dict[str, str]:
        """Of the running ones."""
        running = self.scheduler._residents.running
        return {self.names[one.id]: "away" if one.away else one.tier.value for one in running}

    def main(self, plan: IterationPlan) -> dict[str, tuple[str, int]]:
        return {self.names[one.sequence_id]: (one.tier.value, len(one.token_ids)) for one in plan.sequences}

    def rows(self, plan: IterationPlan) -> list[str]:
        return [self.names[row.sequence_id] for row in plan.host_rows]

    @property
    def stats(self):
        return self.scheduler.stats(self.executor.plans[-1], 0.0)


def saturated(length=29) -> Engine:
    """ "a" and "b" on the device, of whose 16 pages they have 10; "c" on the host."""
    engine = Engine(limits())
    engine.add("a", 19, 40)
    engine.add("b", 19, 40)
    engine.add("c", length, 60)
    engine.step(2)
    assert engine.where() == {"a": "device", "b": "device", "c": "host"}
    return engine


# -- admission


def test_without_an_accelerator_there_is_one_batch_and_no_host_row():
    engine = Engine(limits(device_pages=0))
    engine.add("a")
    plans = [engine.step() for _ in range(3)]
    assert [engine.main(plan) for plan in plans] == [
        {"a": ("host", 5)},
        {"a": ("host", 1)},
        {"a": ("host", 1)},
    ]
    assert not any(plan.host_rows or plan.overlap != ACCELERATOR_ONLY for plan in plans)
    assert {one.tier for one in engine.outputs} == {None}
    engine.run()


def test_the_device_first_then_the_host_at_once_then_the_queue():
    engine = Engine(limits(device_pages=4, host_pages=9, context_length=36))
    for name in "abcde":
        engine.add(name, 6)
    plan = engine.step()
    assert engine.main(plan) == {"a": ("device", 6), "b": ("host", 6), "c": ("host", 6)}, (
        "b would leave no page for a's next token on the device; d would leave none for a on the host"
    )
    assert engine.stats.sequences_waiting == 2
    assert {one.request_id: one.tier for one in engine.outputs} == {"a": "device", "b": "host", "c": "host"}
    engine.run()


def test_a_prompt_longer_than_the_device_is_computed_into_host_pages_and_goes_on_as_a_host_row():
    engine = Engine(limits(device_pages=4, max_batch_tokens=20))
    engine.add("l", 50)
    assert [engine.main(engine.step()) for _ in range(3)] == [{"l": ("host", n)} for n in (20, 20, 10)]
    plan = engine.step()
    assert (engine.main(plan), engine.rows(plan)) == ({}, ["l"])
    assert plan.host_rows[0].position == 50
    engine.run()
    assert engine.stats.migrations_in_total == 0, "it never fits there"


def test_host_rows_do_not_take_from_the_batch():
    engine = Engine(limits(max_batch_tokens=4, device_pages=2, host_pages=99))
    for name in "abcdef":
        engine.add(name, 9)
    engine.step(20)
    engine.add("p", 30)
    plan = engine.step()
    assert len(plan.host_rows) == 6 and engine.main(plan) == {"p": ("host", 4)}
    engine.run()


def test_those_on_the_device_can_always_be_taken_in_by_the_host():
    engine = Engine(limits(device_pages=16, host_pages=27, context_length=100, max_batch_tokens=200))
    engine.add("a", 50)
    for name in "bc":
        engine.add(name, 27)
    engine.step()
    assert engine.where() == {"a": "device", "b": "host"}, (
        "a has 13 pages, b and c would have 7 each, and b wants one more"
    )
    assert engine.stats.sequences_waiting == 1
    engine.run()


def test_a_prefix_on_the_host_decodes_there_at_once_without_a_copy():
    engine = Engine(limits(device_pages=6))
    engine.add("l", 41, 3)
    engine.run()
    engine.scheduler.add(request("l", 21, 5))
    plan = engine.step()
    assert plan.sequences == () and plan.migrations == ()
    assert plan.host_rows[0].position == 20 and len(plan.host_rows[0].page_table) == 6
    assert engine.outputs[-1].cached_tokens == 20 and engine.outputs[-1].tier is Tier.HOST


def test_a_longer_prefix_on_the_device_is_used_there():
    engine = Engine(limits(device_pages=6))
    engine.add("l", 41, 3)
    engine.run()
    for _ in range(2):  # the first one computes what the device lacks
        engine.scheduler.add(request("l", 9, 1, cache_salt="salted"))
        plan = engine.step()
    assert plan.sequences[0].tier is Tier.DEVICE and plan.sequences[0].start == 8


# -- host rows


def test_a_row_is_listed_unchanged_until_its_token_is_sampled():
    engine = Engine(limits(device_pages=4))
    engine.add("l", 30)
    engine.step()
    engine.delays["row"] = 3
    rows = [engine.step().host_rows[0] for _ in range(4)]
    assert len(set(map(msgspec.json.encode, rows))) == 1
    assert len(engine.tokens("l")) == 2, "the prompt's and one more"
    assert engine.step().host_rows[0].position == rows[0].position + 1
    engine.delays["row"] = 0
    engine.run()


def test_a_row_continues_while_it_has_a_page_and_tokens_to_come():
    engine = Engine(limits(device_pages=4))
    engine.add("l", 30, 5)
    engine.step()
    rows = [engine.step().host_rows[0] for _ in range(4)]
    assert [row.continues for row in rows] == [True, True, True, False]
    assert [len(row.page_table) for row in rows] == [8, 9, 9, 9], "position 32 begins the ninth page"
    engine.run()


def test_a_row_that_ends_keeps_its_pages_until_it_is_dropped():
    engine = Engine(limits(device_pages=4))
    engine.add("l", 30, 3)
    engine.delays["drop"] = 2
    engine.step(3)
    assert engine.outputs[-1].finish_reason is FinishReason.LENGTH, "published at once"
    for _ in range(3):
        assert engine.stats.host_pages_used == 8
        plan = engine.step()
        assert not plan.sequences and not plan.host_rows, "an empty plan, for the drop to be reported"
    assert engine.stats.host_pages_used == 0
    assert engine.scheduler.schedule() is None


def test_an_aborted_row_is_answered_at_once_and_its_token_is_nobodys():
    engine = Engine(limits(device_pages=4))
    engine.add("l", 30)
    engine.step(2)
    plan = engine.scheduler.schedule()
    assert plan is not None
    engine.executor.submit(plan)
    assert [one.finish_reason for one in engine.abort("l")] == [FinishReason.ABORT]
    result = engine.executor.collect()
    assert len(result.tokens) == 1
    assert engine.scheduler.commit(plan, result) == ()
    assert engine.stats.host_pages_used > 0
    engine.step()
    assert engine.stats.host_pages_used == 0


def test_a_row_without_a_page_sends_the_last_to_come_away_and_goes_on_when_it_is_dropped():
    engine = Engine(limits(device_pages=1, host_pages=10, context_length=40))
    for name in "abc":
        engine.add(name, 8, 20)
    engine.delays["drop"] = 1
    engine.run()
    assert engine.stats.preemptions_total > 0
    ends = [one.request_id for one in engine.outputs if one.finish_reason]
    assert ends == ["a", "b", "c"]


def test_a_failed_row_ends_alone_and_nobody_finds_its_pages():
    engine = Engine(limits(device_pages=4, prefix_caching=True))
    engine.add("l", 30)
    engine.add("m", 30)
    engine.step(2)
    plan = engine.scheduler.schedule()
    assert plan is not None
    engine.executor.submit(plan)
    result = engine.executor.collect()
    failed = type(result.tokens[0])(result.tokens[0].sequence_id, 0, error="not finite")
    outputs = engine.scheduler.commit(
        plan, msgspec.structs.replace(result, tokens=(failed, *result.tokens[1:]))
    )
    assert [one.finish_reason for one in outputs] == [FinishReason.ERROR, None]
    engine.step()
    assert engine.stats.host_pages_cached == 0


# -- from the device to the host


def test_growth_evicts_the_last_to_come_by_a_copy_and_it_goes_on_as_a_host_row():
    engine = Engine(limits())
    engine.add("a", 20, 40)
    engine.add("b", 20, 40)
    engine.delays["copy"] = 2
    while not (plan := engine.step()).migrations:
        assert engine.main(plan).keys() == {"a", "b"}
    (migration,) = plan.migrations
    assert engine.names[migration.sequence_id] == "b" and migration.source is Tier.DEVICE
    assert engine.main(plan) == {}, "a waits for b's pages"
    assert engine.stats.device_pages_used == 16
    engine.step(2)
    plan = engine.step()
    assert (engine.main(plan), engine.rows(plan)) == ({"a": ("device", 1)}, ["b"])
    assert engine.stats.preemptions_total == 0
    assert engine.stats.migration_bytes_out_total == 100 * len(migration.source_pages) == 800
    engine.run()


@pytest.mark.parametrize(("bus_rate", "copies", "recomputed"), [(1e9, 1, 0), (1e2, 0, 1)])
def test_eviction_copies_or_computes_again_whichever_is_cheaper(bus_rate, copies, recomputed):
    engine = Engine(limits(), costs=AnalyticCosts(bus_rate=bus_rate))
    engine.add("a", 20, 16)
    engine.add("b", 20, 40)
    engine.step()
    while engine.stats.migrations_out_total + engine.stats.preemptions_total == 0:
        engine.step()
    assert (engine.stats.migrations_out_total, engine.stats.preemptions_total) == (copies, recomputed)
    engine.run()


def test_nobody_else_is_evicted_while_pages_are_on_their_way():
    engine = Engine(limits())
    for name in "abcd":
        engine.add(name, 11, 40)
    engine.delays["copy"] = 3
    while not engine.step().migrations:
        pass
    engine.step(2)
    assert engine.where() == {"a": "device", "b": "device", "c": "device", "d": "away"}
    engine.run()


def test_a_sequence_waits_for_a_page_rather_than_leave_while_another_comes():
    engine = saturated(length=21)
    engine.abort("b")
    engine.delays["copy"] = 40
    while engine.main(plan := engine.step()):
        pass
    assert engine.where() == {"a": "device", "c": "away"} and not plan.migrations
    assert (engine.stats.migrations_out_total, engine.stats.preemptions_total) == (0, 0)
    engine.delays["copy"] = 0
    engine.run()


def test_a_lone_sequence_that_no_tier_has_room_for_is_admitted_again_at_once():
    engine = Engine(limits(host_pages=2, device_pages=1, page_size=2, context_length=4))
    engine.add("a", 1, 3)
    engine.step(2)
    assert engine.main(engine.step()) == {"a": ("host", 3)}
    assert engine.stats.preemptions_total == 1
    engine.run()


def test_without_room_on_the_host_eviction_computes_again():
    engine = Engine(limits(host_pages=6, context_length=64))
    engine.add("a", 20, 40)
    engine.add("b", 20, 40)
    engine.run()
    assert engine.stats.preemptions_total > 0 and engine.stats.migrations_out_total == 0


def test_a_lone_sequence_that_outgrows_the_device_moves_itself():
    engine = Engine(limits(device_pages=4))
    engine.add("a", 10, 30)
    engine.run()
    assert engine.stats.migrations_out_total == 1 and engine.stats.preemptions_total == 0
    assert {one.tier for one in engine.outputs} == {Tier.DEVICE, Tier.HOST}


def test_an_abort_during_a_copy_is_answered_at_once_and_frees_both_sides_after_it():
    engine = Engine(limits())
    engine.add("a", 20, 60)
    engine.add("b", 20, 60)
    engine.delays["copy"] = 2
    while not engine.step().migrations:
        pass
    assert [one.finish_reason for one in engine.abort("b")] == [FinishReason.ABORT]
    assert (engine.stats.device_pages_used, engine.stats.host_pages_used) == (16, 9)
    engine.step(2)
    assert (engine.stats.device_pages_used, engine.stats.host_pages_used) == (8, 0)
    engine.run()


# -- from the host to the device


def test_the_earliest_on_the_host_comes_to_the_device_when_there_is_room():
    engine = saturated(length=21)
    engine.abort("a")
    engine.delays["drop"] = engine.delays["copy"] = 1
    plan = engine.step()
    assert engine.rows(plan) == [] and plan.migrations == (), "the executor has to let go of it first"
    engine.step()
    plan = engine.step()
    assert [one.source for one in plan.migrations] == [Tier.HOST]
    engine.step()
    plan = engine.step()
    assert engine.main(plan) == {"b": ("device", 1), "c": ("device", 1)} and not plan.host_rows
    assert engine.stats.migrations_in_total == 1
    engine.run()


def test_a_prompt_on_its_way_finds_what_it_has_computed_and_shares_nothing_it_will_still_write():
    engine = Engine(limits(max_batch_tokens=8, device_pages=24))
    engine.add("a", 21, 60)
    engine.step(3)
    engine.add("x", 45, 60)
    engine.step(7)
    engine.scheduler.add(request("a", 33, 60, request_id="longer"))
    engine.step()
    assert [one.tier for one in engine.scheduler._residents.running] == ["device", "device", "host"]
    engine.abort("x")
    (migration,) = engine.step().migrations
    assert len(migration.source_pages) == 1, "the second one, half full; the first is there already"
    plan = engine.step()
    longer = plan.sequences[-1]
    holders = engine.scheduler._residents.tiers[Tier.DEVICE].pool.holders
    assert (longer.tier, longer.start, len(longer.token_ids)) == (Tier.DEVICE, 6, 7)
    assert [holders(page) for page in longer.page_table] == [2, 1, 1, 1]


def test_who_is_on_the_way_counts_where_it_is_going():
    engine = saturated(length=21)
    engine.abort("a")
    engine.delays["copy"] = 5
    engine.step(2)
    residents = engine.scheduler._residents
    assert engine.where() == {"b": "device", "c": "away"}
    assert (residents.count(Tier.DEVICE), residents.count(Tier.HOST)) == (2, 0)
    engine.run()


def test_a_few_at_a_time_come_to_the_device():
    engine = Engine(limits(device_pages=50, host_pages=150, max_batch_tokens=1000))
    engine.add("z", 190, 9)
    for name in "abcdefgh":
        engine.add(name, 14, 30)
    engine.step(3)
    engine.abort("z")
    plan = engine.step()
    assert list(engine.where().values()).count("away") == MOVES_AT_ONCE
    assert len(plan.host_rows) == 8 - MOVES_AT_ONCE, "the rest goes on meanwhile"
    engine.run()


def test_it_needs_room_to_grow_beside_its_pages():
    engine = saturated()
    engine.abort("b")
    engine.step()
    assert engine.stats.device_pages_used == 6
    assert engine.where()["c"] == "host", "of 10 pages it takes 8, and leaves 1 for a, but only 1 to grow"
    engine.abort("a")
    engine.step()
    assert engine.where()["c"] != "host"
    engine.run()


def test_a_newcomer_does_not_overtake_an_older_one_on_the_host():
    engine = saturated()
    engine.abort("b")
    engine.add("d", 5)
    plan = engine.step()
    assert engine.main(plan)["d"][0] == "host", "there was room for d, but c has first claim to it"
    engine.run()


@pytest.mark.parametrize("reason", ["too long for the device", "soon done"])
def test_a_claim_that_cannot_be_met_or_is_not_worth_a_copy_holds_nobody_up(reason):
    engine = Engine(limits())
    engine.add("l", 70, 20) if reason == "too long for the device" else engine.add("a", 50, 30)
    engine.add("c", 31, WORTH_MOVING if reason == "soon done" else 20)
    engine.step(3)
    assert "host" in engine.where().values()
    if reason == "soon done":
        engine.abort("a")
    engine.add("d", 5)
    plan = engine.step()
    assert engine.main(plan)["d"][0] == "device"
    engine.run()
    assert engine.stats.migrations_in_total == 0


def test_a_higher_priority_goes_before_an_older_claim():
    engine = saturated()
    engine.abort("a")
    engine.abort("b")
    engine.add("d", 55, priority=-1)
    plan = engine.step()
    assert engine.main(plan)["d"][0] == "device" and engine.where()["c"] == "host"
    engine.run()


def test_who_was_evicted_stays_out_for_a_while():
    engine = Engine(limits(device_pages=24))
    engine.add("a", 36, 60)
    engine.add("b", 36, 60)
    while not engine.step().migrations:
        pass
    evicted = engine.executor.plans[-1].iteration
    engine.add("x", 3, 200, priority=-5)
    engine.delays["row"] = 100
    engine.step()
    engine.abort("a")
    while engine.where()["b"] == "host":
        plan = engine.step()
    assert plan.iteration - evicted == STAY_OUT
    engine.delays["row"] = 0
    engine.run()


def test_who_was_evicted_comes_back_at_once_to_an_empty_device():
    engine = Engine(limits())
    engine.add("a", 20, 60)
    engine.add("b", 20, 60)
    while not engine.step().migrations:
        pass
    engine.abort("a")
    engine.step()
    assert engine.stats.migrations_in_total == 1
    engine.run()


def test_nobody_starves_while_newcomers_saturate_the_device():
    engine = Engine(limits(device_pages=12, host_pages=200))
    last: dict[str, int] = {}
    gap = 0
    engine.delays["row"] = 2
    for number in range(400):
        if number % 4 == 0:
            engine.add(f"{chr(97 + number % 26)}{number}", 3 + number % 23, 10 + number % 30)
        seen = len(engine.outputs)
        engine.step()
        for one in engine.outputs[seen:]:
            gap = max(gap, number - last.get(one.request_id, number))
            last[one.request_id] = number
        for name, where in engine.where().items():
            if where == "host" and name in last:
                assert number - last[name] <= 6, "a host row stands still"
    assert gap <= 6
    assert engine.stats.migrations_in_total > 20
    engine.run()


def test_evicting_back_and_forth_is_rare():
    engine = Engine(limits(device_pages=12, host_pages=200))
    for name in "abcdefgh":
        engine.add(name, 9, 60)
    engine.run()
    assert engine.stats.migrations_out_total <= 8


# -- the accelerator alone


def parked(**changes) -> Engine:
    """ "a" on the device; "b" had to leave it and is kept on the host; "c" waits."""
    engine = Engine(limits(host_decodes=False, context_length=64, **changes))
    engine.add("a", 20, 40)
    engine.add("b", 20, 40)
    engine.add("c", 30, 10)
    while not engine.step().migrations:
        pass
    engine.step()
    assert engine.where() == {"a": "device", "b": "host"}
    return engine


def test_alone_the_accelerator_computes_nothing_on_the_host():
    engine = parked()
    for _ in range(5):
        plan = engine.step()
        assert engine.main(plan) == {"a": ("device", 1)} and not plan.host_rows
    assert engine.stats.sequences_waiting == 1, "nor is anybody admitted there"
    engine.run()
    assert {one.tier for one in engine.outputs} == {Tier.DEVICE}


def test_alone_those_swapped_out_come_back_before_anybody_new():
    engine = parked()
    engine.add("z", 3, 2, priority=-1)
    engine.step()
    assert "z" not in engine.where(), "there is room for it, but b is out"
    engine.abort("a")
    plan = engine.step()
    assert engine.names[plan.migrations[0].sequence_id] == "b"
    engine.run()
    ends = [one.request_id for one in engine.outputs if one.finish_reason]
    assert ends.index("c") > ends.index("z")


def test_alone_nobody_new_comes_while_another_is_on_its_way_out():
    engine = Engine(limits(host_decodes=False, context_length=64))
    engine.add("a", 20, 40)
    engine.add("b", 20, 40)
    engine.delays["copy"] = 3
    while not engine.step().migrations:
        pass
    engine.abort("a")
    engine.add("z", 3, 2)
    engine.step()
    assert engine.where() == {"b": "away"}
    engine.run()


def test_alone_a_prefix_kept_on_the_host_is_copied_in_at_admission():
    engine = parked()
    engine.abort("a")
    engine.abort("c")
    engine.run()
    kept = engine.scheduler._residents.tiers[Tier.HOST].pool.cached
    assert kept > 5
    engine.add("x", 60, 4, cache_salt="fills the device")
    engine.step(2)
    engine.abort("x")
    engine.scheduler.add(request("b", 21, 4))
    plan = engine.step()
    (migration,) = plan.migrations
    assert migration.source is Tier.HOST and len(migration.source_pages) == 5
    plan = engine.step()
    assert plan.sequences[0].tier is Tier.DEVICE and plan.sequences[0].start == 20


def test_alone_a_sequence_must_fit_the_device():
    with pytest.raises(ValueError, match="context length"):
        Scheduler(limits(host_decodes=False))


# -- the planner


class Recorder:
    """Chooses what it is told to, and keeps what it was asked."""

    def __init__(self, overlap: Overlap, prefill_tokens: int | None = None) -> None:
        self.overlap = overlap
        self.prefill_tokens = prefill_tokens
        """Chosen where there are no host rows."""
        self.snapshots: list[Snapshot] = []
        self.learnt: list[tuple[Overlap, Timing]] = []

    def choose(self, snapshot: Snapshot) -> Overlap:
        self.snapshots.append(snapshot)
        if snapshot.host:
            return self.overlap
        return msgspec.structs.replace(ACCELERATOR_ONLY, prefill_tokens=self.prefill_tokens)

    def assign(self, host: tuple[HostSequence, ...], overlap: Overlap) -> Mapping[SequenceId, int | None]:
        return {row.sequence_id: number % overlap.waves for number, row in enumerate(host)}

    def learn(self, overlap: Overlap, timing: Timing) -> None:
        self.learnt.append((overlap, timing))


PAIR = Overlap(mode=PlanMode.CATCH_UP, waves=2, passes=3, prefill_tokens=8)


def planned(overlap: Overlap = PAIR, **changes) -> tuple[Engine, Recorder]:
    """ "a" on the device, "b" and "c" on the host."""
    planner = Recorder(overlap)
    engine = Engine(limits(device_pages=8, **changes), planner)
    engine.add("a", 19, 40)
    engine.add("b", 31, 40)
    engine.add("c", 14, 40)
    engine.step(2)
    assert engine.where() == {"a": "device", "b": "host", "c": "host"}
    return engine, planner


def test_without_host_rows_the_planner_still_limits_prompts():
    planner = Recorder(PAIR, prefill_tokens=8)
    engine = Engine(limits(), planner)
    engine.add("a", 19, 40)
    sizes = []
    for _ in range(4):
        plan = engine.step()
        assert plan.overlap.mode is PlanMode.ACCELERATOR_ONLY
        sizes.append(sum(len(one.token_ids) for one in plan.sequences))
    assert sizes == [8, 8, 3, 1]
    assert not any(one.host for one in planner.snapshots)


def test_the_choice_is_made_for_what_the_plan_in_flight_will_lead_to():
    engine, planner = planned()
    plan = engine.scheduler.schedule()
    assert plan is not None and plan.overlap == PAIR
    asked = len(planner.snapshots)
    engine.executor.submit(plan)
    engine.scheduler.think()
    snapshot = planner.snapshots[-1]
    assert (snapshot.device_rows, snapshot.device_tokens) == (1, 22), "19, two so far, and one on its way"
    assert [(one.tokens, one.wave) for one in snapshot.host] == [(33, 0), (16, 1)]
    assert snapshot.previous == PAIR and snapshot.prefills == ()
    engine.scheduler.commit(plan, engine.executor.collect())
    engine.step()
    assert len(planner.snapshots) == asked + 2, "once while each plan was computed, never in between"


def test_a_choice_is_used_once():
    engine, planner = planned()
    for _ in range(2):
        asked = len(planner.snapshots)
        plan = engine.scheduler.schedule()
        assert plan is not None
        engine.executor.submit(plan)
        engine.scheduler.commit(plan, engine.executor.collect())
    assert len(planner.snapshots) == asked + 1, "nobody thought ahead, so it is asked when the plan is made"


def test_a_choice_for_another_state_is_made_again():
    engine, planner = planned()
    asked = len(planner.snapshots)
    engine.abort("a")
    engine.step()
    assert [bool(one.device_rows) for one in planner.snapshots[asked:]] == [False, False]


def test_the_planner_limits_prompts():
    engine, planner = planned()
    engine.add("p", 30)
    assert [engine.main(engine.step()).get("p") for _ in range(4)] == [("host", n) for n in (8, 8, 8, 6)]
    assert planner.snapshots[-4].prefills == (PrefillWork(22, 8, on_host=True),)


def test_the_prompt_that_will_be_admitted_is_known_to_the_planner():
    engine, planner = planned()
    plan = engine.scheduler.schedule()
    assert plan is not None
    engine.add("p", 30)
    engine.executor.submit(plan)
    engine.scheduler.think()
    assert planner.snapshots[-1].prefills == (PrefillWork(30, 0, on_host=True),)


def test_waves_are_told_to_the_executor_and_remembered():
    engine, _planner = planned()
    rows: tuple[HostRow, ...] = engine.step().host_rows
    assert [row.wave for row in rows] == [0, 1]


def test_paused_iterations_are_counted():
    engine, planner = planned(Overlap(mode=PlanMode.ACCELERATOR_ONLY, reason="measured"))
    before = len(engine.tokens("b"))
    engine.step(4)
    counts = [one.paused for one in planner.snapshots]
    assert counts[-4:] == list(range(counts[-4], counts[-4] + 4)) and len(engine.tokens("b")) == before
    planner.overlap = PAIR
    engine.step(2)
    assert planner.snapshots[-1].paused == 0 and len(engine.tokens("b")) == before + 1


def test_the_planner_learns_what_was_measured():
    engine, planner = planned()
    timing = Timing(
        total=1.0, stages={}, predicted={}, accelerator_idle=0.0, waited_for_host=0.0, host_idle=0.0
    )
    plan = engine.scheduler.schedule()
    assert plan is not None
    engine.executor.submit(plan)
    result = msgspec.structs.replace(engine.executor.collect(), timing=timing)
    engine.scheduler.commit(plan, result)
    assert planner.learnt == [(PAIR, timing)]
    stats = engine.scheduler.stats(plan, 1.0)
    assert (stats.plan, stats.timing) == (PAIR, timing)


def test_the_statistics_tell_tiers_apart():
    engine, _planner = planned()
    stats = engine.stats
    assert (stats.sequences_device, stats.sequences_host, stats.host_rows) == (1, 2, 2)
    assert (stats.device_pages_used, stats.host_pages_used) == (5, 13)
    assert stats.decode_tokens == 3

"""Random add/abort/iterate sequences: no page leaked or wrongly shared, every choice ends once, in one tier
or two, however host rows are planned and however long their tokens, drops and copies take."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler.plan import IterationPlan, Overlap, PlanMode, Timing
from scheduler.residents import After
from scheduler.scheduler import Limits, Scheduler
from scheduler.snapshot import HostSequence, Snapshot
from scheduler.tier import Tier
from scheduler.types import ChoiceOutput, FinishReason, Request, RequestId, SamplingParams, SequenceId
from tests.property.hash_executor import HashExecutor, expected_output

EOS = 7


class RandomPlanner:
    """Chooses anything."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def choose(self, snapshot: Snapshot) -> Overlap:
        assert snapshot.host or snapshot.device_rows or snapshot.prefills, "asked for nothing"
        return Overlap(
            mode=self.rng.choice(tuple(PlanMode)) if snapshot.host else PlanMode.ACCELERATOR_ONLY,
            waves=2,
            prefill_tokens=self.rng.choice((None, 1, 5)),
        )

    def assign(self, host: tuple[HostSequence, ...], overlap: Overlap) -> Mapping[SequenceId, int | None]:
        return {row.sequence_id: self.rng.choice((None, 0, 1)) for row in host}

    def learn(self, overlap: Overlap, timing: Timing) -> None:
        raise AssertionError("this executor measures nothing")


class SchedulerMachine(RuleBasedStateMachine):
    """Drives a scheduler as the iteration loop does, aborts in flight included."""

    @initialize(
        page_size=st.sampled_from([1, 2, 4, 16]),
        spare_pages=st.integers(0, 12),
        other_pages=st.integers(1, 24),
        tiers=st.sampled_from(["one", "large host", "large device", "host only keeps"]),
        seed=st.integers(0, 1000),
        context_length=st.integers(4, 40),
        max_running=st.integers(1, 6),
        max_batch_tokens=st.integers(1, 24),
        prefix_caching=st.booleans(),
    )
    def start(
        self,
        page_size,
        spare_pages,
        other_pages,
        tiers,
        seed,
        context_length,
        max_running,
        max_batch_tokens,
        prefix_caching,
    ):
        pages = -(-context_length // page_size) + spare_pages
        host, device = {"one": (pages, 0), "large host": (pages, other_pages)}.get(
            tiers, (other_pages, pages)
        )
        self.limits = Limits(
            host_pages=host,
            device_pages=device,
            host_decodes=tiers != "host only keeps",
            page_size=page_size,
            max_running=max_running,
            max_batch_tokens=max_batch_tokens,
            context_length=context_length,
            eos_token_ids=(EOS,),
            prefix_caching=prefix_caching,
        )
        rng = random.Random(seed)
        self.scheduler = Scheduler(self.limits, RandomPlanner(rng))
        self.residents = self.scheduler._residents
        self.executor = HashExecutor(page_size, lambda _what: rng.choice((0, 0, 1, 3)))
        self.plan: IterationPlan | None = None
        self.requests: dict[str, Request] = {}
        self.outputs: dict[tuple[str, int], list[int]] = {}
        self.finished: dict[tuple[str, int], FinishReason] = {}
        self.aborted: set[tuple[str, int]] = set()

    @rule(
        prefix=st.integers(0, 2),
        length=st.integers(1, 39),
        tail=st.lists(st.integers(0, 2), max_size=3),
        n=st.integers(1, 3),
        priority=st.integers(-1, 1),
        max_tokens=st.integers(1, 30),
        ignore_eos=st.booleans(),
    )
    def add(self, prefix, length, tail, n, priority, max_tokens, ignore_eos):
        shared = [(prefix + position) % 3 for position in range(length)]
        prompt = (shared + tail)[: self.limits.context_length - 1]
        request = Request(
            request_id=RequestId(f"r{len(self.requests)}"),
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(max_tokens=max_tokens, seed=len(self.requests), ignore_eos=ignore_eos),
            n=n,
            priority=priority,
        )
        self.requests[request.request_id] = request
        self.scheduler.add(request)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), whole=st.booleans())
    def abort(self, data, whole):
        name = data.draw(st.sampled_from(sorted(self.requests)))
        request = self.requests[name]
        index = None if whole else data.draw(st.integers(0, request.n - 1))
        touched = range(request.n) if index is None else [index]
        self.aborted |= {(name, one) for one in touched if (name, one) not in self.finished}
        self.take(self.scheduler.abort(request.request_id, index))

    @precondition(lambda self: self.plan is None)
    @rule()
    def schedule(self):
        before = {sequence.id: sequence.tier for sequence in self.residents.running}
        self.plan = self.scheduler.schedule()
        self.check_the_reserve(before)
        if self.plan is None:
            assert not self.scheduler.has_requests, "live requests, but nothing to compute"
            assert not self.executor.rows and not self.executor.leaving and not self.executor.copies
            return
        assert self.plan.num_tokens <= self.limits.max_batch_tokens
        assert self.plan.num_tokens or self.plan.host_rows or self.residents.under_way
        assert len(self.plan.sequences) + len(self.plan.host_rows) <= self.limits.max_running
        if not (self.limits.device_pages and self.limits.host_decodes):
            assert not self.plan.host_rows
        self.check_nobody_writes_what_others_read(self.plan)
        self.executor.submit(self.plan)
        self.scheduler.think()

    @precondition(lambda self: self.plan is not None)
    @rule()
    def commit(self):
        plan, self.plan = self.plan, None
        self.take(self.scheduler.commit(plan, self.executor.collect()))

    @rule(iterations=st.integers(1, 30))
    def run(self, iterations):
        for _ in range(iterations):
            if self.plan is None:
                self.schedule()
            if self.plan is not None:
                self.commit()

    @rule(iterations=st.integers(1, 40), after_commit=st.booleans())
    def abort_someone_who_is_away(self, iterations, after_commit):
        """Aborts at any time hardly ever come while a drop or a copy is under way."""
        for _ in range(iterations):
            self.run(1)
            if not after_commit and self.plan is None:
                self.schedule()
            away = [sequence for sequence in self.residents.running if sequence.away]
            if away:
                request, index = away[0].request, away[0].index
                self.aborted.add((request.request_id, index))
                outputs = self.scheduler.abort(request.request_id, index)
                assert [one.finish_reason for one in outputs] == [FinishReason.ABORT], "published at once"
                self.take(outputs)
                return

    @invariant()
    def pages_add_up(self):
        if not hasattr(self, "scheduler"):
            return
        tiers, running = self.residents.tiers, self.residents.running
        leaving = [sequence for sequence, _after in self.residents._leaving.values()]
        holding = {one.id: one for one in (*running, *leaving, *(move.sequence for move in tiers.moves))}
        held = {tier: Counter[int]() for tier in Tier}
        for sequence in holding.values():
            held[sequence.tier].update(sequence.pages)
        for move in tiers.moves:
            assert move.target is not move.sequence.tier
            held[move.target].update(move.pages)
        for tier in Tier if self.limits.device_pages else (Tier.HOST,):
            assert tiers[tier].pool.held == len(held[tier])
            for page, holders in held[tier].items():
                assert tiers[tier].pool.holders(page) == holders
            assert len(tiers[tier].index) >= tiers[tier].pool.cached

    @invariant()
    def everyone_is_in_one_place(self):
        if not hasattr(self, "scheduler"):
            return
        residents = self.residents
        live = {one.id: one for choices in self.scheduler._requests.values() for one in choices.values()}
        requeued = [one.id for one, after in residents._leaving.values() if after is After.REQUEUE]
        held_back = [one.id for each in live.values() for one in each.followers]
        waiting = [one.id for one in residents.waiting._waiting.values()]
        places = [one.id for one in residents.running] + requeued + held_back + waiting
        assert sorted(one for one in places if one in live) == sorted(live)
        assert set(places) - set(live) <= set(held_back), "only choices that were aborted early"
        assert residents.running == sorted(residents.running, key=lambda one: one.precedence)

    def check_nobody_writes_what_others_read(self, plan: IterationPlan) -> None:
        starts = [(one.tier, one.start, one.page_table) for one in plan.sequences]
        starts += [(Tier.HOST, row.position, row.page_table) for row in plan.host_rows]
        for tier, start, table in starts:
            pool = self.residents.tiers[tier].pool
            assert all(pool.holders(page) == 1 for page in table[start // self.limits.page_size :])

    def check_the_reserve(self, before: dict[SequenceId, Tier]) -> None:
        """Whoever came to the host tier left room there for all who are on the device."""
        tiers, running = self.residents.tiers, self.residents.running
        if not self.limits.host_pages > self.limits.device_pages > 0 or not self.limits.host_decodes:
            return
        if any(one.id not in before and one.tier is Tier.HOST for one in running):
            stayed = [one for one in running if before.get(one.id) is one.tier is Tier.DEVICE]
            assert tiers[Tier.HOST].pool.available >= len({page for one in stayed for page in one.pages})

    def take(self, outputs: tuple[ChoiceOutput, ...]) -> None:
        for output in outputs:
            key = (output.request_id, output.index)
            assert key not in self.finished, "output after the terminal one"
            self.outputs.setdefault(key, []).extend(output.token_ids)
            if output.finish_reason is not None:
                self.finished[key] = output.finish_reason

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        for _ in range(20_000):
            self.run(1)
            if not self.scheduler.has_requests and self.plan is None and not self.residents.under_way:
                break
        choices = {(name, index) for name, one in self.requests.items() for index in range(one.n)}
        assert set(self.finished) == choices, "every choice ends exactly once"
        for tier in Tier if self.limits.device_pages else (Tier.HOST,):
            assert self.residents.tiers[tier].pool.held == 0, "pages leaked"
        for key in choices:
            expected = expected_output(self.requests[key[0]], key[1], EOS, self.limits.context_length)
            if self.finished[key] is FinishReason.ABORT:
                assert key in self.aborted
                assert self.outputs[key] == expected[: len(self.outputs[key])]
            else:
                assert self.outputs[key] == expected


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)

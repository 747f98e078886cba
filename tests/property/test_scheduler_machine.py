"""Random add/abort/iterate sequences: no page leaked or wrongly shared, every choice ends once."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler.plan import IterationPlan
from scheduler.scheduler import Limits, Scheduler
from scheduler.types import ChoiceOutput, FinishReason, Request, RequestId, SamplingParams
from tests.property.hash_executor import HashExecutor, expected_output

EOS = 7


class SchedulerMachine(RuleBasedStateMachine):
    """Drives a scheduler as the iteration loop does, aborts in flight included."""

    @initialize(
        page_size=st.sampled_from([1, 2, 4, 16]),
        spare_pages=st.integers(0, 12),
        context_length=st.integers(4, 40),
        max_running=st.integers(1, 6),
        max_batch_tokens=st.integers(1, 24),
        prefix_caching=st.booleans(),
    )
    def start(self, page_size, spare_pages, context_length, max_running, max_batch_tokens, prefix_caching):
        self.limits = Limits(
            num_pages=-(-context_length // page_size) + spare_pages,
            page_size=page_size,
            max_running=max_running,
            max_batch_tokens=max_batch_tokens,
            context_length=context_length,
            eos_token_ids=(EOS,),
            prefix_caching=prefix_caching,
        )
        self.scheduler = Scheduler(self.limits)
        self.executor = HashExecutor(page_size)
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
        self.plan = self.scheduler.schedule()
        if self.plan is None:
            assert not self.scheduler.has_requests, "live requests, but nothing to compute"
            return
        assert 1 <= self.plan.num_tokens <= self.limits.max_batch_tokens
        assert len(self.plan.sequences) <= self.limits.max_running
        self.executor.submit(self.plan)

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

    @invariant()
    def pages_add_up(self):
        if not hasattr(self, "scheduler"):
            return
        pages = self.scheduler._pages
        held = [page for sequence in self.scheduler._running for page in sequence.pages]
        assert pages.pool.held == len(set(held))
        for page in set(held):
            assert pages.pool.holders(page) == held.count(page)
        assert len(pages.index) >= pages.pool.cached

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
            if not self.scheduler.has_requests and self.plan is None:
                break
            self.run(1)
        choices = {(name, index) for name, one in self.requests.items() for index in range(one.n)}
        assert set(self.finished) == choices, "every choice ends exactly once"
        assert self.scheduler._pages.pool.held == 0, "pages leaked"
        for key in choices:
            expected = expected_output(self.requests[key[0]], key[1], EOS, self.limits.context_length)
            if self.finished[key] is FinishReason.ABORT:
                assert key in self.aborted
                assert self.outputs[key] == expected[: len(self.outputs[key])]
            else:
                assert self.outputs[key] == expected


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)

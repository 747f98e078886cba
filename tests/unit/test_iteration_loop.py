"""The loop's order of things: messages are read while an iteration runs, everything is published."""

from __future__ import annotations

from collections import deque

from scheduler.clock import VirtualClock
from scheduler.iteration_loop import IterationLoop
from scheduler.messages import AbortRequest, AddRequest, FlushCache, IterationOutput, Order
from scheduler.plan import IterationPlan, IterationResult
from scheduler.scheduler import Limits, Scheduler
from scheduler.types import FinishReason, Request, RequestId, SamplingParams
from tests.property.hash_executor import HashExecutor

LIMITS = Limits(host_pages=32, page_size=4, max_running=4, max_batch_tokens=32, context_length=64)


class Script:
    """An inbox that answers each call with the next entry, then says the server is gone."""

    def __init__(self, *takes: list[Order]) -> None:
        self.takes = deque(takes)
        self.waits: list[bool] = []

    def take(self, wait: bool) -> list[Order]:
        self.waits.append(wait)
        if not self.takes:
            raise EOFError
        return self.takes.popleft()


class SlowExecutor(HashExecutor):
    """Every iteration takes a quarter of a second of virtual time."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(page_size=4)
        self.clock = clock
        self.closed = False

    def submit(self, plan: IterationPlan) -> None:
        super().submit(plan)
        self.clock.advance(0.25)

    def collect(self) -> IterationResult:
        return super().collect()

    def close(self) -> None:
        self.closed = True


def run(script: Script) -> tuple[list[IterationOutput], SlowExecutor]:
    clock = VirtualClock()
    executor = SlowExecutor(clock)
    published: list[IterationOutput] = []
    IterationLoop(Scheduler(LIMITS), executor, clock, script, published.append).run()
    return published, executor


def add(name: str, max_tokens: int = 3) -> AddRequest:
    params = SamplingParams(max_tokens=max_tokens, seed=0)
    return AddRequest(Request(request_id=RequestId(name), prompt_token_ids=(1, 2), sampling=params))


def test_it_waits_only_when_there_is_nothing_to_compute():
    script = Script([add("a", max_tokens=2)], [], [])
    published, executor = run(script)
    assert script.waits == [True, False, False, True]
    assert [len(one.outputs) for one in published] == [0, 1, 1]
    assert executor.closed


def test_iteration_time_comes_from_the_clock():
    published, _executor = run(Script([add("a")], [], [], []))
    assert [one.stats.iteration_seconds for one in published] == [0.0, 0.25, 0.25, 0.25]


def test_an_abort_during_an_iteration_ends_the_choice_at_its_commit():
    script = Script([add("a"), add("b")], [AbortRequest(RequestId("a"))], [], [], [])
    published, _executor = run(script)
    first = {one.request_id: one.finish_reason for one in published[1].outputs}
    assert first == {"a": FinishReason.ABORT, "b": None}
    assert published[1].stats.sequences_running == 1


def test_an_abort_while_waiting_is_published_at_once():
    long = Request(
        request_id=RequestId("a"),
        prompt_token_ids=tuple(range(60)),
        sampling=SamplingParams(max_tokens=3, seed=0),
        n=2,
    )
    script = Script([AddRequest(long)], [AbortRequest(RequestId("a"), 1)], [AbortRequest(RequestId("a"))], [])
    published, _executor = run(script)
    ended = [(one.index, one.finish_reason) for one in published[1].outputs]
    assert ended == [(1, FinishReason.ABORT), (0, None)], "and the first choice has a place"
    assert published[-1].stats.host_pages_used == 0


def test_a_broken_request_ends_alone():
    params = SamplingParams(max_tokens=3, seed=0)
    broken = Request(request_id=RequestId("b"), prompt_token_ids=(1,) * 64, sampling=params, n=2)
    published, _executor = run(Script([add("a", max_tokens=2), AddRequest(broken)], [], []))
    first = [(one.request_id, one.index, one.finish_reason) for one in published[0].outputs]
    assert first == [("b", 0, FinishReason.ERROR), ("b", 1, FinishReason.ERROR)]
    assert "context_length" in published[0].outputs[0].error
    assert published[2].outputs[0].finish_reason is FinishReason.LENGTH


def test_a_flushed_cache_finds_no_prefix_that_nobody_uses():
    prompt = tuple(range(20))

    def ask(name: str) -> AddRequest:
        params = SamplingParams(max_tokens=1, seed=0)
        return AddRequest(Request(request_id=RequestId(name), prompt_token_ids=prompt, sampling=params))

    published, _ = run(Script([ask("a")], [], [ask("b")], [], [FlushCache()], [ask("c")], []))
    kept = [one.stats.host_pages_cached for one in published]
    assert max(kept) == 5 and 0 in kept[kept.index(5) :]
    assert published[-1].stats.prefix_hits_total == 16, "b found a's, c found nothing"

"""The scheduler's choices, one by one. Tokens come from HashExecutor, so that pages are checked too."""

from __future__ import annotations

import pytest

from scheduler.plan import IterationPlan
from scheduler.scheduler import Limits, Scheduler
from scheduler.types import ChoiceOutput, FinishReason, Request, RequestId, SamplingParams
from tests.property.hash_executor import HashExecutor, expected_output


def limits(**changes) -> Limits:
    values = {
        "host_pages": 64,
        "page_size": 4,
        "max_running": 8,
        "max_batch_tokens": 64,
        "context_length": 100,
    }
    return Limits(**{**values, **changes})


def request(name: str, prompt=(1, 2, 3, 4, 5), max_tokens=4, **changes) -> Request:
    return Request(
        request_id=RequestId(name),
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, seed=0),
        **changes,
    )


class Engine:
    """A scheduler and an executor, stepped by hand."""

    def __init__(self, limits: Limits) -> None:
        self.scheduler = Scheduler(limits)
        self.executor = HashExecutor(limits.page_size)
        self.outputs: list[ChoiceOutput] = []

    def step(self) -> IterationPlan | None:
        plan = self.scheduler.schedule()
        if plan is not None:
            self.executor.submit(plan)
            self.outputs += self.scheduler.commit(plan, self.executor.collect())
        return plan

    def run(self) -> None:
        while self.step() is not None:
            pass

    def tokens(self, name: str, index: int = 0) -> list[int]:
        mine = [one for one in self.outputs if one.request_id == name and one.index == index]
        return [token for output in mine for token in output.token_ids]


def counts(plan: IterationPlan | None) -> list[int]:
    assert plan is not None
    return [len(sequence.token_ids) for sequence in plan.sequences]


def test_a_long_prompt_is_computed_in_chunks_and_decodes_go_first():
    engine = Engine(limits(max_batch_tokens=8))
    engine.scheduler.add(request("short", max_tokens=10))
    assert counts(engine.step()) == [5]
    engine.scheduler.add(request("long", prompt=range(20)))
    chunks = [counts(engine.step()) for _ in range(4)]
    assert chunks == [[1, 7], [1, 7], [1, 6], [1, 1]]


def test_decodes_go_before_an_earlier_prompt():
    engine = Engine(limits(max_batch_tokens=8))
    engine.scheduler.add(request("late", priority=1, max_tokens=10))
    engine.step()
    engine.scheduler.add(request("long", prompt=range(30), priority=0))
    plan = engine.step()
    assert counts(plan) == [1, 7]


def test_priority_then_arrival_decides_admission():
    engine = Engine(limits(max_running=1))
    for name, priority in (("a", 5), ("b", 5), ("c", 1)):
        engine.scheduler.add(request(name, priority=priority))
    engine.run()
    order = [one.request_id for one in engine.outputs if one.finish_reason]
    assert order == ["c", "a", "b"]


def test_an_equal_prompt_finds_all_full_pages_but_computes_its_last_token():
    engine = Engine(limits())
    engine.scheduler.add(request("a", prompt=range(8)))
    engine.run()
    engine.scheduler.add(request("b", prompt=range(8)))
    assert counts(engine.step()) == [4], "the page with the last token is computed again"
    engine.scheduler.add(request("c", prompt=range(9)))
    plan = engine.step()
    assert plan is not None and plan.sequences[-1].start == 8
    firsts = {one.request_id: one.cached_tokens for one in engine.outputs if one.cached_tokens}
    assert firsts == {"b": 4, "c": 8}
    assert engine.scheduler.stats(None, 0.0).prefix_hits_total == 12


def test_generated_tokens_are_found_by_the_next_turn():
    engine = Engine(limits())
    engine.scheduler.add(request("a", prompt=range(6), max_tokens=7))
    engine.run()
    engine.scheduler.add(request("b", prompt=[*range(6), *engine.tokens("a"), 1, 2]))
    plan = engine.step()
    assert plan is not None and plan.sequences[0].start == 12


@pytest.mark.parametrize("salts", [("x", "y"), ("", "x")])
def test_salted_requests_share_nothing(salts):
    engine = Engine(limits())
    for name, salt in zip("ab", salts, strict=True):
        engine.scheduler.add(request(name, prompt=range(12), cache_salt=salt))
        assert counts(engine.step()) == [12]
        engine.run()


def test_without_prefix_caching_requests_share_nothing_but_choices_do():
    engine = Engine(limits(prefix_caching=False))
    for name in "ab":
        engine.scheduler.add(request(name, prompt=range(12), n=3))
        assert counts(engine.step()) == [12]
        assert counts(engine.step()) == [1, 4, 4]
        engine.run()


def test_choices_share_the_prompts_pages():
    engine = Engine(limits())
    engine.scheduler.add(request("a", prompt=range(13), n=3))
    engine.step()
    plan = engine.step()
    assert plan is not None
    tables = [sequence.page_table for sequence in plan.sequences]
    assert len({table[:3] for table in tables}) == 1
    assert len({table[3] for table in tables}) == 3
    engine.run()
    for index in range(3):
        assert engine.tokens("a", index) == expected_output(request("a", prompt=range(13)), index, None, 100)


def test_when_the_first_choice_goes_early_the_next_computes_the_prompt():
    engine = Engine(limits(max_batch_tokens=4))
    engine.scheduler.add(request("a", prompt=range(12), n=3))
    engine.step()
    engine.outputs += engine.scheduler.abort(RequestId("a"), 0)
    assert counts(engine.step()) == [4]
    engine.run()
    reasons = {one.index: one.finish_reason for one in engine.outputs if one.finish_reason}
    assert reasons == {0: FinishReason.ABORT, 1: FinishReason.LENGTH, 2: FinishReason.LENGTH}


def test_the_last_to_come_is_preempted_and_ends_with_the_same_tokens():
    engine = Engine(limits(host_pages=25, context_length=100))
    for name in "abc":
        engine.scheduler.add(request(name, prompt=[ord(name)] * 17, max_tokens=40))
    engine.run()
    assert engine.scheduler.stats(None, 0.0).preemptions_total > 0
    order = [one.request_id for one in engine.outputs if one.finish_reason]
    assert order == ["a", "b", "c"]
    for name in "abc":
        one = request(name, prompt=[ord(name)] * 17, max_tokens=40)
        assert engine.tokens(name) == expected_output(one, 0, None, 100)


def test_a_newcomer_leaves_room_for_the_next_tokens_of_those_who_run():
    engine = Engine(limits(host_pages=25, max_batch_tokens=200))
    for name in "abc":
        engine.scheduler.add(request(name, prompt=[ord(name)] * 32, max_tokens=20))
    plan = engine.step()
    assert counts(plan) == [32, 32], "3 * 8 pages fit 25, but not with headroom for two"
    assert engine.scheduler.stats(None, 0.0).sequences_waiting == 1


def test_a_choice_in_flight_keeps_its_pages_until_commit():
    engine = Engine(limits())
    engine.scheduler.add(request("a"))
    plan = engine.scheduler.schedule()
    assert plan is not None
    assert engine.scheduler.abort(RequestId("a")) == ()
    assert engine.scheduler.stats(None, 0.0).host_pages_used == 2
    engine.executor.submit(plan)
    (output,) = engine.scheduler.commit(plan, engine.executor.collect())
    assert output.finish_reason is FinishReason.ABORT and output.token_ids == ()
    assert engine.scheduler.stats(None, 0.0).host_pages_used == 0


def test_stop_tokens_end_also_when_end_of_sequence_is_ignored():
    one = request("a", max_tokens=30)
    expected = expected_output(one, 0, None, 100)
    stop = expected[5]
    params = SamplingParams(max_tokens=30, seed=0, ignore_eos=True, stop_token_ids=(stop,))
    engine = Engine(limits(eos_token_ids=(expected[2],)))
    engine.scheduler.add(
        Request(request_id=one.request_id, prompt_token_ids=one.prompt_token_ids, sampling=params)
    )
    engine.run()
    assert engine.tokens("a") == expected[: expected.index(stop) + 1]
    assert engine.outputs[-1].finish_reason is FinishReason.STOP


def test_a_failed_token_ends_only_its_own_sequence():
    engine = Engine(limits())
    engine.scheduler.add(request("a", prompt=range(9)))
    engine.scheduler.add(request("b"))
    plan = engine.scheduler.schedule()
    assert plan is not None
    engine.executor.submit(plan)
    result = engine.executor.collect()
    failed = type(result.tokens[0])(result.tokens[0].sequence_id, 0, error="logits are not finite")
    outputs = engine.scheduler.commit(plan, type(result)(result.iteration, (failed, result.tokens[1])))
    assert [one.finish_reason for one in outputs] == [FinishReason.ERROR, None]
    assert outputs[0].error == "logits are not finite" and outputs[0].token_ids == ()
    engine.run()
    assert engine.scheduler.stats(None, 0.0).host_pages_cached == 2, "only b's can be found again"
    engine.scheduler.add(request("c", prompt=range(9)))
    plan = engine.step()
    assert plan is not None and plan.sequences[0].start == 0
    engine.run()
    assert engine.scheduler.stats(None, 0.0).host_pages_used == 0


def test_broken_requests_are_refused():
    scheduler = Scheduler(limits())
    scheduler.add(request("a"))
    for bad in (request("a"), request("b", prompt=()), request("c", prompt=range(100)), request("d", n=0)):
        with pytest.raises(ValueError):
            scheduler.add(bad)
    with pytest.raises(ValueError, match="context length"):
        Scheduler(limits(host_pages=24))

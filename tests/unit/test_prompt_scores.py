"""Log-probabilities of prompts: all of them, once, whatever chunks, prefix hits and preemptions there are."""

from __future__ import annotations

import msgspec
import pytest

from scheduler.plan import ScoredTokens
from scheduler.scheduler import SCORED_ROWS, Limits, Scheduler
from scheduler.types import ChoiceOutput, FinishReason, Request, RequestId, SamplingParams
from tests.property.hash_executor import HashExecutor, expected_score


def limits(**changes) -> Limits:
    values = {
        "host_pages": 80,
        "page_size": 4,
        "max_running": 8,
        "max_batch_tokens": 64,
        "context_length": 300,
    }
    return Limits(**{**values, **changes})


def request(name: str, prompt, top: int | None = 0, max_tokens: int = 3, **changes) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, seed=0, prompt_logprobs=top)
    return Request(request_id=RequestId(name), prompt_token_ids=tuple(prompt), sampling=sampling, **changes)


def serve(
    scheduler: Scheduler, *requests: Request, executor: HashExecutor | None = None
) -> list[ChoiceOutput]:
    executor = executor or HashExecutor(4)
    for one in requests:
        scheduler.add(one)
    outputs: list[ChoiceOutput] = []
    while (plan := scheduler.schedule()) is not None:
        executor.submit(plan)
        outputs += scheduler.commit(plan, executor.collect())
    return outputs


def scores(outputs: list[ChoiceOutput], name: str, index: int = 0) -> list[tuple[int, float]]:
    """What came, all of it beside the choice's first token."""
    mine = [one for one in outputs if one.request_id == name and one.index == index]
    first = next(one for one in mine if one.token_ids)
    assert not any(one.prompt_logprobs for one in mine if one is not first)
    return [(entry.token_id, entry.logprob) for entry in first.prompt_logprobs]


def expected(prompt) -> list[tuple[int, float]]:
    tokens = list(prompt)
    return [(tokens[end], expected_score(tokens[:end])) for end in range(1, len(tokens))]


PROMPT = [(7 * number) % 50 for number in range(41)]


@pytest.mark.parametrize("batch", [1, 3, 4, 5, 40, 64])
@pytest.mark.parametrize("length", [1, 2, 4, 5, 41])
def test_whatever_the_chunks(batch: int, length: int):
    outputs = serve(Scheduler(limits(max_batch_tokens=batch)), request("a", PROMPT[:length]))
    assert scores(outputs, "a") == expected(PROMPT[:length])


def test_a_cached_prefix_is_computed_again_for_its_scores_only():
    scheduler, executor = Scheduler(limits()), HashExecutor(4)
    plain = serve(scheduler, request("plain", PROMPT, top=None), executor=executor)
    assert scores(plain, "plain") == []
    scored = serve(scheduler, request("scored", PROMPT), executor=executor)
    assert (scores(scored, "scored"), scored[0].cached_tokens) == (expected(PROMPT), 0)
    again = serve(scheduler, request("again", PROMPT, top=None), executor=executor)
    assert again[0].cached_tokens == 40


def test_only_the_first_choice_scores_and_the_others_share_its_pages():
    outputs = serve(Scheduler(limits()), request("a", PROMPT, n=3))
    assert [scores(outputs, "a", index) for index in range(3)] == [expected(PROMPT), [], []]
    assert min(number for number, one in enumerate(outputs) if one.index > 0) > 0
    others = [one for one in outputs if one.index == 1]
    assert others[0].cached_tokens == 40


def test_a_preempted_prompt_scores_nothing_twice():
    scheduler = Scheduler(limits(host_pages=76, max_batch_tokens=16, context_length=200))
    long = [(11 * number) % 50 for number in range(120)]
    others = [request(f"o{number}", PROMPT[: 20 + number], None, max_tokens=90) for number in range(3)]
    outputs = serve(scheduler, *others, request("scored", long, priority=5, max_tokens=60))
    assert scheduler.stats(None, 0.0).preemptions_total > 0
    assert scores(outputs, "scored") == expected(long)


def test_logits_are_bounded():
    scheduler = Scheduler(limits(max_batch_tokens=1000))
    scheduler.add(request("a", range(200)))
    plan = scheduler.schedule()
    assert plan is not None and plan.sequences[0].score is not None
    assert len(plan.sequences[0].token_ids) == SCORED_ROWS


def test_logits_that_are_no_numbers_end_the_sequence():
    scheduler = Scheduler(limits())
    scheduler.add(request("a", PROMPT))
    plan = scheduler.schedule()
    assert plan is not None
    executor = HashExecutor(4)
    executor.submit(plan)
    result = executor.collect()
    broken = ScoredTokens(plan.sequences[0].sequence_id, (), "not finite")
    (output,) = scheduler.commit(plan, msgspec.structs.replace(result, scores=(broken,)))
    assert (output.finish_reason, output.error) == (FinishReason.ERROR, "not finite")
    assert not scheduler.has_requests

"""The executor on a tiny model: tokens in plan order, broken rows alone, and misuse refused."""

from __future__ import annotations

import msgspec
import pytest
import torch

from engine.torch_executor import TorchExecutor
from scheduler.plan import IterationPlan
from scheduler.types import SamplingParams
from tests.builders.paged_model import GREEDY, PagedModel, load_directory
from tests.builders.tiny_models import TinyModel, make_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model("mistral", tmp_path_factory.mktemp("mistral"))


@pytest.fixture
def paged(tiny: TinyModel) -> PagedModel:
    return PagedModel(load_directory(tiny.directory), page_size=8)


@pytest.fixture
def executor(paged: PagedModel) -> TorchExecutor:
    return TorchExecutor(paged.runner, eos_token_ids=(2,))


def compute(executor: TorchExecutor, plan: IterationPlan) -> list[int]:
    executor.submit(plan)
    result = executor.collect()
    assert result.iteration == plan.iteration
    assert not any(token.error for token in result.tokens)
    sampling = [each.sequence_id for each in plan.sequences if each.sample is not None]
    assert [token.sequence_id for token in result.tokens] == sampling
    return [token.token_id for token in result.tokens]


def oracle_greedy(tiny: TinyModel, tokens: list[int]) -> int:
    return int(tiny.logits(tokens)[-1].argmax())


def test_tokens_come_in_plan_order_whatever_the_row_order(
    tiny: TinyModel, paged: PagedModel, executor: TorchExecutor
):
    prompts = {0: [5, 6, 7], 1: [8], 2: list(range(20)), 3: [9, 9], 4: [11] * 12}
    first = compute(executor, paged.plan(prompts))
    assert first == [oracle_greedy(tiny, tokens) for tokens in prompts.values()]
    known = {each: prompts[each] + [token] for each, token in zip(prompts, first, strict=True)}
    later = {5: [40, 41], 2: known[2][-1:], 0: known[0][-1:], 6: [3], 4: known[4][-1:]}
    whole = {each: known.get(each, tokens) for each, tokens in later.items()}
    assert compute(executor, paged.plan(later)) == [oracle_greedy(tiny, tokens) for tokens in whole.values()]


def test_only_asked_sequences_are_sampled(tiny: TinyModel, paged: PagedModel, executor: TorchExecutor):
    chunk = paged.plan({0: [4, 5, 6]}, sample=None)
    assert compute(executor, chunk) == []
    mixed = IterationPlan(
        7, (*paged.plan({1: [8, 9]}, sample=None).sequences, *paged.plan({0: [7], 2: [3, 1]}).sequences)
    )
    expected = [oracle_greedy(tiny, [4, 5, 6, 7]), oracle_greedy(tiny, [3, 1])]
    assert compute(executor, mixed) == expected


def test_sampling_parameters_and_end_of_sequence_tokens_reach_the_sampler(
    tiny: TinyModel, paged: PagedModel, executor: TorchExecutor
):
    wants_end = SamplingParams(
        max_tokens=9, temperature=0.0, seed=0, logit_bias={2: 1000.0}, min_tokens=1, logprobs=2
    )
    plan = paged.plan({0: [5, 6]}, sample=msgspec.structs.replace(GREEDY, params=wants_end))
    executor.submit(plan)
    token = executor.collect().tokens[0]
    assert token.token_id == oracle_greedy(tiny, [5, 6])  # token 2 is banned before min_tokens
    assert token.logprobs is not None
    expected = tiny.logits([5, 6])[-1].log_softmax(-1)
    best = expected.topk(2)
    assert [each for each, _ in token.logprobs.top] == best.indices.tolist()
    assert [each for _, each in token.logprobs.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_a_broken_sequence_harms_neither_batch_mates_nor_the_next_owner_of_its_pages(
    tiny: TinyModel, paged: PagedModel, executor: TorchExecutor
):
    compute(executor, paged.plan({0: [5, 6, 7], 1: [8, 9]}))
    broken = paged.plan({0: [10], 1: [11], 2: [12, 13]})
    paged.storage.tokens[broken.sequences[0].page_table[0]] = torch.nan
    executor.submit(broken)
    tokens = executor.collect().tokens
    assert [bool(token.error) for token in tokens] == [True, False, False]
    good = [oracle_greedy(tiny, [8, 9, 11]), oracle_greedy(tiny, [12, 13])]
    assert [token.token_id for token in tokens[1:]] == good
    paged.release(0)
    assert compute(executor, paged.plan({3: [20]})) == [oracle_greedy(tiny, [20])]


def test_pages_are_all_that_is_kept_of_a_sequence(tiny: TinyModel, paged: PagedModel):
    """Another executor over the same pages goes on where the first one stopped."""
    prompt = list(range(30))
    compute(TorchExecutor(paged.runner, ()), paged.plan({0: prompt[:17]}, sample=None))
    token = compute(TorchExecutor(paged.runner, ()), paged.plan({0: prompt[17:]}))
    assert token == [oracle_greedy(tiny, prompt)]


def test_one_iteration_at_a_time(paged: PagedModel, executor: TorchExecutor):
    with pytest.raises(RuntimeError, match="no iteration"):
        executor.collect()
    executor.submit(paged.plan({0: [1]}))
    with pytest.raises(RuntimeError, match="iteration 1 has not been collected"):
        executor.submit(paged.plan({1: [1]}))
    executor.collect()
    with pytest.raises(RuntimeError, match="no iteration"):
        executor.collect()


def test_closed(paged: PagedModel, executor: TorchExecutor):
    executor.submit(paged.plan({0: [1]}))
    executor.close()
    with pytest.raises(RuntimeError, match="no iteration"):
        executor.collect()
    with pytest.raises(RuntimeError, match="closed"):
        executor.submit(paged.plan({0: [1]}))


@pytest.mark.parametrize(("tokens", "pages"), [((), (0,)), ((1,) * 9, (0,)), ((1,), ())])
def test_a_plan_that_overruns_its_pages_is_refused(
    paged: PagedModel, executor: TorchExecutor, tokens: tuple[int, ...], pages: tuple[int, ...]
):
    good = paged.plan({0: [1]})
    bad = msgspec.structs.replace(good.sequences[0], token_ids=tokens, page_table=pages)
    with pytest.raises(ValueError, match="sequence 0"):
        executor.submit(IterationPlan(1, (bad,)))
    assert len(compute(executor, good)) == 1


def test_a_page_table_may_hold_more_pages_than_needed(
    tiny: TinyModel, paged: PagedModel, executor: TorchExecutor
):
    sequence = paged.plan({0: [5, 6, 7]}).sequences[0]
    longer = msgspec.structs.replace(sequence, page_table=(*sequence.page_table, 63, 62))
    assert compute(executor, IterationPlan(1, (longer,))) == [oracle_greedy(tiny, [5, 6, 7])]

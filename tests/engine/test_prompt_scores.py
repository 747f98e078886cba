"""Prompt tokens scored by both executors: what the model alone gives, in any chunks, beside other rows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from engine.devices.cpu import CpuDevice
from engine.kernels.loader import load_kernels
from engine.sampling.native import NativeSampler
from engine.torch_executor import TorchExecutor
from engine.wanted_logits import tokens_and_scores
from scheduler.plan import IterationPlan, SampleSpec, ScheduledSequence, ScoreSpec
from scheduler.tier import Tier
from scheduler.types import SequenceId
from tests.builders.paged_model import GREEDY, PagedModel, Runner, load_directory
from tests.builders.tiny_models import TinyModel, make_tiny_model
from tests.engine.hybrid_harness import PAGE_SIZE, make_executor

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12, 13, 40, 41, 42]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model("llama", Path(tmp_path_factory.mktemp("llama")))


def scored(sequence: ScheduledSequence, prompt: list[int], first: int = 0, top: int = 2) -> ScheduledSequence:
    """The same sequence with everything scored from one of its tokens on."""
    begin = sequence.start + first
    end = min(sequence.start + len(sequence.token_ids), len(prompt) - 1)
    spec = ScoreSpec(first=first, token_ids=tuple(prompt[begin + 1 : end + 1]), top=top)
    return msgspec.structs.replace(sequence, score=spec)


def check(tiny: TinyModel, prompt: list[int], logprobs, first: int = 1) -> None:
    """``logprobs`` are those of the prompt's tokens from position ``first`` on."""
    expected = tiny.logits(prompt).double().log_softmax(-1)
    for position, entry in enumerate(logprobs, first):
        row = expected[position - 1]
        assert entry.token_id == prompt[position]
        assert entry.logprob == pytest.approx(row[prompt[position]].item(), abs=1e-4)
        assert [token for token, _ in entry.top] == row.topk(len(entry.top)).indices.tolist()


def native_sampler() -> NativeSampler:
    pytest.importorskip("engine.kernels._native")
    kernels = load_kernels("auto", 2)
    assert kernels is not None
    return NativeSampler(kernels)


@pytest.mark.parametrize(
    ("runner", "kernels"), [("torch", "torch"), ("torch", "auto"), ("native", "auto")], ids="/".join
)
def test_in_chunks_beside_others(tiny: TinyModel, runner: Runner, kernels: str):
    native = native_sampler() if runner == "native" else None
    model = load_directory(tiny.directory, runner=runner, kernels=kernels)
    paged = PagedModel(model, page_size=8, runner=runner, kernels=kernels)
    executor = TorchExecutor(paged.runner, (2,), native)
    first = scored(paged.schedule(0, PROMPT[:5], None), PROMPT)
    other = paged.schedule(1, [3, 4], GREEDY)
    executor.submit(IterationPlan(1, (other, first)))
    result = executor.collect()
    assert [token.sequence_id for token in result.tokens] == [1]
    second = scored(paged.schedule(0, PROMPT[5:], GREEDY), PROMPT, first=2)
    decode = paged.schedule(1, [9], GREEDY)
    executor.submit(IterationPlan(2, (second, decode)))
    later = executor.collect()
    assert [token.sequence_id for token in later.tokens] == [0, 1]
    assert later.tokens[0].token_id == int(tiny.logits(PROMPT)[-1].argmax())
    assert later.tokens[1].token_id == int(tiny.logits([3, 4, 9])[-1].argmax())
    (before,), (after,) = result.scores, later.scores
    assert len(before.logprobs) == 5 and len(after.logprobs) == 4
    check(tiny, PROMPT, before.logprobs)
    check(tiny, PROMPT, after.logprobs, first=8)


@pytest.mark.parametrize("native", [False, True], ids=["torch", "native"])
def test_in_both_tiers_of_the_hybrid_executor(tiny: TinyModel, native: bool):
    if native:
        pytest.importorskip("engine.kernels._native")
    model = load_directory(tiny.directory)
    executor, _tiers = make_executor(model, CpuDevice(), device_pages=8, host_pages=8, native=native)
    pages = tuple(range(-(-len(PROMPT) // PAGE_SIZE)))

    def sequence(number: int, tier: Tier, sample: SampleSpec | None) -> ScheduledSequence:
        whole = ScheduledSequence(
            sequence_id=SequenceId(number), token_ids=tuple(PROMPT), start=0, page_table=pages,
            sample=sample, tier=tier,
        )  # fmt: skip
        return scored(whole, PROMPT, top=0)

    executor.submit(IterationPlan(1, (sequence(1, Tier.HOST, None), sequence(2, Tier.DEVICE, GREEDY))))
    result = executor.collect()
    executor.close()
    assert [token.token_id for token in result.tokens] == [int(tiny.logits(PROMPT)[-1].argmax())]
    assert {one.sequence_id for one in result.scores} == {1, 2}
    for one in result.scores:
        assert len(one.logprobs) == len(PROMPT) - 1
        check(tiny, PROMPT, one.logprobs)


def test_only_scores(tiny: TinyModel):
    model = load_directory(tiny.directory)
    executor, _tiers = make_executor(model, CpuDevice(), device_pages=8, host_pages=8)
    chunk = ScheduledSequence(
        sequence_id=SequenceId(1), token_ids=tuple(PROMPT[:4]), start=0, page_table=(0,), sample=None,
        tier=Tier.DEVICE,
    )  # fmt: skip
    executor.submit(IterationPlan(1, (scored(chunk, PROMPT),)))
    result = executor.collect()
    executor.close()
    assert result.tokens == ()
    check(tiny, PROMPT, result.scores[0].logprobs)


@pytest.mark.parametrize("native", [False, True], ids=["numpy", "native"])
def test_impossible_tokens_and_broken_logits(native: bool):
    logits = torch.zeros(3, 8)
    logits[0, 3] = -torch.inf
    logits[2, 0] = torch.nan
    spec = ScoreSpec(first=0, token_ids=(3,), top=1)
    good = (SequenceId(1), spec)
    tokens, (fine, broken) = tokens_and_scores(
        logits,
        [good, (SequenceId(2), ScoreSpec(first=0, token_ids=(1, 1), top=0))],
        (),
        native_sampler() if native else None,
    )
    assert tokens == []
    (entry,) = fine.logprobs
    assert (entry.token_id, entry.logprob, len(entry.top)) == (3, -9999.0, 1)
    assert broken.error and not broken.logprobs

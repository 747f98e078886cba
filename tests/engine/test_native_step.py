"""The native step: what changes no bit of its results, what it is near to, and what it refuses.

That its logits are right is tests/engine/test_models_oracle.py's matter.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.batch import make_batch
from engine.kernels import _native
from engine.kernels.loader import load_kernels
from engine.kv_storage import KVStorage
from engine.models.decoder import DecoderModel
from engine.native_runner import NativeRunner
from engine.native_step import NotNativeError
from tests.builders.paged_model import PagedModel, load_directory
from tests.builders.tiny_models import VOCABULARY, TinyModel, make_tiny_model

LENGTHS = (40, 3, 300, 65)


@pytest.fixture(scope="module", params=["llama-with-biases", "gemma3"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Without head norms, and with them and two kinds of rotation."""
    return make_tiny_model(request.param, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(tiny: TinyModel) -> DecoderModel:
    return load_directory(tiny.directory, runner="native")


def prompt(length: int, seed: int = 1) -> list[int]:
    return random.Random(seed).choices(range(VOCABULARY), k=length)


def serve(paged: PagedModel, prompts: dict[int, list[int]], steps: int = 4) -> dict[int, Tensor]:
    """Logits after the prompt and after each of a few tokens more, [steps, vocab]."""
    found: dict[int, list[Tensor]] = {each: [] for each in prompts}
    tokens = prompts
    for step in range(steps):
        for each, logits in paged.last_logits(tokens).items():
            found[each].append(logits)
        tokens = {each: prompt(1, seed=100 * each + step) for each in prompts}
    return {each: torch.stack(rows) for each, rows in found.items()}


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_change_no_bit(model: DecoderModel, threads: int):
    prompts = {each: prompt(length, each) for each, length in enumerate(LENGTHS)}
    alone = serve(PagedModel(model, runner="native", threads=1), prompts)
    together = serve(PagedModel(model, runner="native", threads=threads), prompts)
    for each in prompts:
        assert torch.equal(alone[each], together[each])


def test_other_rows_change_no_bit(model: DecoderModel):
    prompts = {each: prompt(length, each) for each, length in enumerate(LENGTHS)}
    together = serve(PagedModel(model, runner="native"), prompts)
    for each, tokens in prompts.items():
        alone = serve(PagedModel(model, runner="native"), {each: tokens})
        assert torch.equal(alone[each], together[each])


def test_chunks_change_no_bit(model: DecoderModel):
    tokens = prompt(90)
    whole = PagedModel(model, runner="native").all_logits(tokens)
    paged = PagedModel(model, runner="native")
    chunks = [paged.all_logits(tokens[first:last]) for first, last in ((0, 2), (2, 35), (35, 90))]
    assert torch.equal(torch.cat(chunks), whole)


@pytest.mark.parametrize("kernels", _native.instruction_sets())
def test_every_instruction_set(tiny: TinyModel, kernels: str):
    tokens = prompt(70)
    expected = tiny.logits(tokens)
    model = load_directory(tiny.directory, runner="native", kernels=kernels)
    paged = PagedModel(model, runner="native", kernels=kernels)
    actual = torch.cat([paged.all_logits(tokens[:60]), *(paged.all_logits([each]) for each in tokens[60:])])
    assert (actual - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())


@pytest.mark.parametrize(
    ("kv_dtype", "allowed"), [(torch.float16, 2e-3), (torch.bfloat16, 0.02), (torch.int8, 0.03)], ids=str
)
def test_kv_formats(tiny: TinyModel, model: DecoderModel, kv_dtype: torch.dtype, allowed: float):
    tokens = prompt(70)
    expected = tiny.logits(tokens)
    paged = PagedModel(model, runner="native", kv_dtype=kv_dtype)
    actual = torch.cat([paged.all_logits(tokens[:60]), *(paged.all_logits([each]) for each in tokens[60:])])
    assert 0 < (actual - expected).pow(2).mean().sqrt() <= allowed * expected.std()


def test_sampled_rows_in_any_order_even_none(model: DecoderModel):
    tokens = prompt(30)
    expected = PagedModel(model, runner="native").all_logits(tokens)
    paged = PagedModel(model, runner="native")
    batch = make_batch(paged.plan({0: tokens}).sequences, paged.storage.page_size)
    rows = torch.tensor([7, 29, 0, 7])
    assert torch.equal(paged.runner.run(replace(batch, sample_rows=rows)), expected[rows])
    nothing = paged.runner.run(replace(batch, sample_rows=rows[:0]))
    assert nothing.shape == (0, VOCABULARY)
    assert nothing.dtype == torch.float32
    following = prompt(1, seed=9)
    after = PagedModel(model, runner="native")
    after.all_logits(tokens)
    assert torch.equal(paged.all_logits(following), after.all_logits(following))


def test_rows_that_can_not_be_are_refused(model: DecoderModel):
    paged = PagedModel(model, runner="native")
    batch = make_batch(paged.plan({0: prompt(5)}).sequences, paged.storage.page_size)
    for token in (-1, VOCABULARY):
        with pytest.raises(ValueError, match="no such token"):
            paged.runner.run(replace(batch, token_ids=torch.tensor([1, 2, token, 3, 4])))
    with pytest.raises(ValueError, match="no such row"):
        paged.runner.run(replace(batch, sample_rows=torch.tensor([5])))
    with pytest.raises(ValueError, match="for other rows"):
        paged.runner.run(replace(batch, token_ids=torch.tensor([1, 2])))


def test_torch_weights_are_refused_by_name(tiny: TinyModel):
    model = load_directory(tiny.directory)
    kernels = load_kernels("auto", 1)
    assert kernels is not None
    with pytest.raises(NotNativeError, match="DenseEmbedding"):
        NativeRunner(model, KVStorage(model.config, 1, 16, torch.float32), kernels)

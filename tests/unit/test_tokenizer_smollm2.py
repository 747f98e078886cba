"""The tokenizer of a real GGUF file against the one transformers makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from engine.weights.source import ModelSource, resolve
from server.text.tokenizer import Tokenizer, UnencodableTextError, load_tokenizer
from tests.builders.texts import corpus


@pytest.fixture(scope="module")
def source() -> ModelSource:
    return resolve("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def tokenizer(source: ModelSource) -> Tokenizer:
    return load_tokenizer(source)


@pytest.fixture(scope="module")
def oracle(source: ModelSource) -> tokenizers.Tokenizer:
    path: Path = source.path
    backend = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).backend_tokenizer
    # transformers ignores the file's pre-tokenizer "smollm"; this is what SmolLM2's own
    # tokenizer.json has, and llama.cpp.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return backend


def test_every_text_gets_the_same_ids(tokenizer: Tokenizer, oracle: tokenizers.Tokenizer):
    for text in corpus():
        assert tokenizer.encode(text) == oracle.encode(text, add_special_tokens=False).ids, repr(text)


def test_every_text_comes_back(tokenizer: Tokenizer):
    for text in corpus():
        assert tokenizer.decode_bytes(tokenizer.encode(text), skip_special=False) == text.encode()


def test_every_token_has_its_bytes(tokenizer: Tokenizer, oracle: tokenizers.Tokenizer):
    ids = range(tokenizer.vocab_size)
    expected = oracle.decode_batch([[token_id] for token_id in ids], skip_special_tokens=False)
    assert tokenizer.vocab_size == oracle.get_vocab_size() == 49_152
    assert [tokenizer.token_bytes(token_id).decode(errors="replace") for token_id in ids] == expected


def test_special_tokens(tokenizer: Tokenizer, oracle: tokenizers.Tokenizer):
    special = {i for i, token in oracle.get_added_tokens_decoder().items() if token.special}
    assert {i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i)} == special
    assert (tokenizer.bos_id, tokenizer.eos_id) == (1, 2)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    ids = tokenizer.encode("<|im_start|>user\nhi<|im_end|>")
    assert ids[0] == 1
    assert ids[-1] == 2
    assert tokenizer.decode(ids) == "user\nhi"
    assert "im_start" in tokenizer.chat_templates["default"]


def test_ids_beyond_the_vocabulary_have_no_bytes(tokenizer: Tokenizer):
    assert tokenizer.token_bytes(49_152) == b""
    assert tokenizer.token_bytes(-1) == b""


def test_a_lone_surrogate_is_the_clients_error(tokenizer: Tokenizer):
    with pytest.raises(UnencodableTextError, match=r"U\+D800\) at character 3"):
        tokenizer.encode("abc\ud800def")

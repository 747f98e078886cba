"""Byte-level BPE from GGUF metadata, against tokenizers made the way the models' tokenizer.json is."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from engine.model_error import ModelError
from server.text.tokenizer.gguf import tokenizer_from_metadata
from server.text.tokenizer.pre_tokenization import pre_tokenization
from tests.builders.texts import corpus

LLAMA3_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_REGEX = LLAMA3_REGEX.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN_REGEX = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split_json(regex: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, byte_level_json(use_regex=False)]}


def byte_level_json(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def digits_json(individual: bool) -> dict[str, Any]:
    return {"type": "Digits", "individual_digits": individual}


def sequence_json(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


THREE_DIGITS = {
    "type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated", "invert": False,
}  # fmt: skip
OFFICIAL = {
    "llama-bpe": (split_json(LLAMA3_REGEX), None, True),
    "qwen2": (split_json(QWEN2_REGEX), {"type": "NFC"}, False),
    "tekken": (split_json(TEKKEN_REGEX), None, True),
    "gpt-2": (byte_level_json(use_regex=True), None, False),
    "smollm": (sequence_json(digits_json(True), byte_level_json(use_regex=True)), None, False),
}
"""Pre-tokenizer, normalizer and ignore_merges as in the models' published tokenizer.json."""

TELLING = "It'S 1234567 CamelHTTP\r\n\r\n  e\u0301 x/\n//\n"
"""Each of them cuts this in its own places."""


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """A byte-level BPE model and three added tokens. Learned on uncut text, so every cut shows."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*corpus(600), *[TELLING] * 9], trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens(["<think>"])
    made: dict[str, Any] = json.loads(tokenizer.to_str())
    return made


def metadata_of(trained: dict[str, Any], pre: str | None) -> dict[str, Any]:
    """What llama.cpp's converter writes for this tokenizer."""
    ids = dict(trained["model"]["vocab"])
    types = [1] * len(ids)
    for token in trained["added_tokens"]:
        ids[token["content"]] = token["id"]
        types.append(3 if token["special"] else 4)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": sorted(ids, key=ids.__getitem__),
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in trained["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": ids["<|im_start|>"],
        "tokenizer.ggml.eos_token_id": ids["<|im_end|>"],
    }
    return metadata if pre is None else metadata | {"tokenizer.ggml.pre": pre}


@pytest.mark.parametrize("pre", OFFICIAL)
def test_text_is_cut_as_in_tokenizer_json(trained: dict[str, Any], pre: str):
    pre_tokenizer, normalizer, ignore_merges = OFFICIAL[pre]
    model = trained["model"] | {"ignore_merges": ignore_merges}
    official = trained | {"pre_tokenizer": pre_tokenizer, "normalizer": normalizer, "model": model}
    oracle = tokenizers.Tokenizer.from_str(json.dumps(official))
    tokenizer = tokenizer_from_metadata(metadata_of(trained, pre))
    for text in [*corpus(), "a<think>b", "1234567 <|im_end|> 12"]:
        assert tokenizer.encode(text, add_special=False) == oracle.encode(text).ids, repr(text)


def test_the_ways_to_cut_differ_on_this_text(trained: dict[str, Any]):
    cuts = {
        tuple(tokenizer_from_metadata(metadata_of(trained, pre)).encode(TELLING, False)) for pre in OFFICIAL
    }
    assert len(cuts) == len(OFFICIAL)


@pytest.mark.parametrize(("pre", "whole"), [("llama-bpe", True), ("tekken", True), ("qwen2", False)])
def test_a_word_that_no_merges_make(trained: dict[str, Any], pre: str, whole: bool):
    """Llama 3 and Mistral take a word that is a token as that token, however it would be merged."""
    metadata = metadata_of(trained, pre)
    metadata["tokenizer.ggml.tokens"].append("qxzjq")
    metadata["tokenizer.ggml.token_type"].append(1)
    ids = tokenizer_from_metadata(metadata).encode("qxzjq", add_special=False)
    assert (ids == [len(metadata["tokenizer.ggml.tokens"]) - 1]) == whole


def test_a_file_without_a_name_is_cut_as_in_falcon(trained: dict[str, Any], caplog: pytest.LogCaptureFixture):
    """The oldest files; llama.cpp took Falcon's way for them."""
    punctuation = {"type": "Punctuation", "behavior": "Contiguous"}
    falcon = sequence_json(punctuation, byte_level_json(True), digits_json(False), THREE_DIGITS)
    oracle = tokenizers.Tokenizer.from_str(json.dumps(trained | {"pre_tokenizer": falcon}))
    tokenizer = tokenizer_from_metadata(metadata_of(trained, None), "old.gguf")
    assert "old.gguf: tokenizer.ggml.pre is missing" in caplog.text
    # Falcon's own also cuts at more ASCII symbols than llama.cpp does, so leave those out.
    texts = [
        "a == b !== 1234567",
        "Hello, world!! a1b22c333d4444",
        "x = y + 1 <= 2 | ~z ^ $5",
        "«Ja», sagte er…",
    ]
    for text in texts:
        assert tokenizer.encode(text, add_special=False) == oracle.encode(text).ids
        ours = pre_tokenization("default", "old.gguf").pre_tokenizer()
        assert pieces(ours, text) == pieces(oracle.pre_tokenizer, text)


def pieces(pre_tokenizer: pre_tokenizers.PreTokenizer, text: str) -> list[str]:
    return [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)]


def test_an_unknown_way_to_cut_is_refused(trained: dict[str, Any]):
    with pytest.raises(
        ModelError, match=r"a.gguf: .*'martian' is not supported; known are .*llama-bpe.*qwen2"
    ):
        tokenizer_from_metadata(metadata_of(trained, "martian"), "a.gguf")


@pytest.mark.parametrize(
    ("pre", "declared", "added"),
    [("qwen2", None, False), ("qwen2", True, True), ("llama-bpe", None, True), ("llama-bpe", False, False)],
)
def test_begin_of_sequence(trained: dict[str, Any], pre: str, declared: bool | None, added: bool):
    metadata = metadata_of(trained, pre)
    if declared is not None:
        metadata["tokenizer.ggml.add_bos_token"] = declared
    tokenizer = tokenizer_from_metadata(metadata)
    plain = tokenizer.encode("hi", add_special=False)
    bos = tokenizer.bos_id
    assert tokenizer.encode("hi") == ([bos, *plain] if added else plain)
    # A rendered chat template that begins with it gets no second one.
    assert tokenizer.encode("<|im_start|>hi") == [bos, *plain]
    assert tokenizer.encode("") == ([bos] if added else [])


def test_added_tokens_are_special_only_if_they_control(trained: dict[str, Any]):
    tokenizer = tokenizer_from_metadata(metadata_of(trained, "qwen2"))
    ids = tokenizer.encode("<|im_start|><think>ok<|im_end|>")
    assert tokenizer.decode(ids) == "<think>ok"
    assert tokenizer.decode(ids, skip_special=False) == "<|im_start|><think>ok<|im_end|>"


def test_padding_tokens_read_as_nothing(trained: dict[str, Any]):
    metadata = metadata_of(trained, "qwen2")
    metadata["tokenizer.ggml.tokens"].append("[PAD1]")
    metadata["tokenizer.ggml.token_type"].append(5)
    tokenizer = tokenizer_from_metadata(metadata)
    assert tokenizer.token_bytes(tokenizer.vocab_size - 1) == b""
    assert not tokenizer.is_special(tokenizer.vocab_size - 1)


def test_a_token_outside_the_byte_alphabet_stands_for_itself(trained: dict[str, Any]):
    metadata = metadata_of(trained, "qwen2")
    metadata["tokenizer.ggml.tokens"] += ["<｜begin▁of▁sentence｜>", "漢 字"]
    metadata["tokenizer.ggml.token_type"] += [3, 1]
    tokenizer = tokenizer_from_metadata(metadata)
    size = tokenizer.vocab_size
    assert tokenizer.encode("<｜begin▁of▁sentence｜>") == [size - 2]
    assert tokenizer.token_bytes(size - 2).decode() == "<｜begin▁of▁sentence｜>"
    assert tokenizer.token_bytes(size - 1).decode() == "漢 字"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "bert"}, "tokenizer model 'bert' is not supported; gpt2 and llama are"),
        ({"model": None}, "tokenizer model None"),
        ({"tokens": []}, r"tokenizer\.ggml\.tokens is missing or empty"),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, "holds a token twice"),
        ({"tokens": [1, 2]}, "wrong type"),
        ({"token_type": [1]}, r"1503 tokens have 1 types"),
        ({"merges": None}, r"tokenizer\.ggml\.merges is missing or empty"),
        ({"merges": ["nowhere inside"]}, "not a usable tokenizer: .*nowhere"),
        ({"merges": ["unsplit"]}, "not a usable tokenizer"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(trained: dict[str, Any], change: dict[str, Any], message: str):
    metadata = metadata_of(trained, "qwen2")
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in change.items()}
    with pytest.raises(ModelError, match=f"model.gguf: .*{message}"):
        tokenizer_from_metadata(metadata, "model.gguf")


def test_a_role_outside_the_vocabulary_counts_as_absent(
    trained: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    """Converters have written -1 as an unsigned number."""
    metadata = metadata_of(trained, "llama-bpe") | {"tokenizer.ggml.bos_token_id": 2**32 - 1}
    tokenizer = tokenizer_from_metadata(metadata)
    assert tokenizer.bos_id is None
    assert "bos token id 4294967295 is outside the vocabulary" in caplog.text
    assert tokenizer.encode("") == []


def test_chat_templates_by_name(trained: dict[str, Any]):
    metadata = metadata_of(trained, "qwen2") | {
        "tokenizer.chat_template": "one",
        "tokenizer.chat_templates": ["tool_use", "lost"],
        "tokenizer.chat_template.tool_use": "two",
    }
    assert tokenizer_from_metadata(metadata).chat_templates == {"default": "one", "tool_use": "two"}

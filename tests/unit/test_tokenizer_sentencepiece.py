"""SentencePiece BPE from GGUF metadata, against SentencePiece's own algorithm done naively."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, trainers
from transformers.tokenization_utils_base import generate_merges

from engine.model_error import ModelError
from server.text.tokenizer import Tokenizer
from server.text.tokenizer.gguf import tokenizer_from_metadata
from server.text.tokenizer.sentencepiece_merges import merges_from_scores
from tests.builders.texts import corpus

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
MARK = "\u2581"


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    """A vocabulary as Llama 2 has it: structure, bytes, and pieces that rank by when they were learned."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", MARK)
    trainer = trainers.BpeTrainer(vocab_size=1200, limit_alphabet=150, show_progress=False)
    learner.train_from_iterator([text for text in corpus(600) if "<" not in text], trainer)
    vocab = learner.get_vocab()
    pieces = sorted(vocab, key=vocab.__getitem__)
    first_merge = next(i for i, piece in enumerate(pieces) if len(piece) > 1)
    # SentencePiece puts single characters last and gives them the worst scores.
    pieces = pieces[first_merge:] + pieces[:first_merge]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [
            *("<unk>", "<s>", "</s>"),
            *(f"<0x{byte:02X}>" for byte in range(256)),
            *pieces,
        ],
        "tokenizer.ggml.scores": [*[0.0] * 259, *(float(-rank) for rank in range(len(pieces)))],
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def naive_ids(metadata: dict[str, Any], text: str) -> list[int]:
    """Merge the neighbours whose union scores highest, leftmost first, until none makes a piece."""
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata["tokenizer.ggml.token_type"]
    ids = {token: i for i, token in enumerate(tokens) if types[i] == NORMAL}
    scores = metadata["tokenizer.ggml.scores"]
    symbols = list(text.replace(" ", MARK))
    while True:
        unions = [(left + right, at) for at, (left, right) in enumerate(itertools.pairwise(symbols))]
        ranked = [(-scores[ids[union]], at) for union, at in unions if union in ids]
        if not ranked:
            break
        _, at = min(ranked)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    known = [[ids[symbol]] if symbol in ids else [3 + byte for byte in symbol.encode()] for symbol in symbols]
    return [token for group in known for token in group]


PLAIN = [text for text in corpus(60) if "<s>" not in text]
"""The naive algorithm knows no special tokens."""


@pytest.mark.parametrize("space_prefix", [True, False])
def test_merging_by_score(metadata: dict[str, Any], space_prefix: bool):
    tokenizer = tokenizer_from_metadata(metadata | {"tokenizer.ggml.add_space_prefix": space_prefix})
    for text in PLAIN:
        expected = naive_ids(metadata, " " + text if space_prefix and text else text)
        assert tokenizer.encode(text, add_special=False) == expected, repr(text)


@pytest.mark.parametrize("space_prefix", [True, False])
def test_every_text_comes_back(metadata: dict[str, Any], space_prefix: bool):
    tokenizer = tokenizer_from_metadata(metadata | {"tokenizer.ggml.add_space_prefix": space_prefix})
    assert tokenizer.strips_leading_space == space_prefix
    for text in PLAIN:
        assert tokenizer.decode_bytes(tokenizer.encode(text)) == text.encode()


def test_a_character_outside_the_vocabulary_becomes_bytes(metadata: dict[str, Any]):
    tokenizer = tokenizer_from_metadata(metadata)
    ids = tokenizer.encode("\U00012345", add_special=False)
    assert ids[1:] == [3 + byte for byte in "\U00012345".encode()]
    assert [tokenizer.token_bytes(token) for token in ids] == [b" ", b"\xf0", b"\x92", b"\x8d", b"\x85"]


def test_begin_of_sequence_is_added_unless_the_file_says_no(metadata: dict[str, Any]):
    tokenizer = tokenizer_from_metadata(metadata)
    assert tokenizer.encode("a")[0] == 1
    assert tokenizer.encode("<s>a") == tokenizer.encode("a")
    without = tokenizer_from_metadata(metadata | {"tokenizer.ggml.add_bos_token": False})
    assert without.encode("a") == tokenizer.encode("a")[1:]


def with_token(metadata: dict[str, Any], token: str, type_: int, score: float) -> tuple[Tokenizer, int]:
    extended = dict(metadata)
    for key, value in (("tokens", token), ("token_type", type_), ("scores", score)):
        extended[f"tokenizer.ggml.{key}"] = [*metadata[f"tokenizer.ggml.{key}"], value]
    return tokenizer_from_metadata(extended), len(metadata["tokenizer.ggml.tokens"])


def test_user_defined_tokens_are_found_before_merging(metadata: dict[str, Any]):
    """Gemma's runs of spaces and newlines: spelled with real spaces, scored too low to be merged."""
    metadata = metadata | {"tokenizer.ggml.add_space_prefix": False}
    tokenizer, token_id = with_token(metadata, "    ", USER_DEFINED, -1000.0)
    assert tokenizer.encode("x    y", add_special=False) == [
        *naive_ids(metadata, "x"), token_id, *naive_ids(metadata, "y"),
    ]  # fmt: skip
    assert tokenizer.decode(tokenizer.encode("x    y")) == "x    y"
    assert not tokenizer.is_special(token_id)


def test_merges_are_those_of_transformers():
    rng = random.Random(3)
    tokens = list(dict.fromkeys("".join(rng.choices("abc▁", k=rng.randint(1, 6))) for _ in range(400)))
    scores = {token: float(-rank) for rank, token in enumerate(tokens)}
    ids = {token: index for index, token in enumerate(tokens)}
    assert merges_from_scores(scores) == generate_merges(ids, scores)
    assert len(merges_from_scores(scores)) > 300


def test_scores_are_needed_for_each_token(metadata: dict[str, Any]):
    with pytest.raises(ModelError, match=r"f.gguf: .*scores is missing"):
        tokenizer_from_metadata(metadata | {"tokenizer.ggml.scores": None}, "f.gguf")
    with pytest.raises(ModelError, match=r"f.gguf: \d+ tokens have 1 scores"):
        tokenizer_from_metadata(metadata | {"tokenizer.ggml.scores": [0.0]}, "f.gguf")

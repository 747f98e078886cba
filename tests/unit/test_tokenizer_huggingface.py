"""Tokenizers of Hugging Face directories, against the library's own encoding and decoding."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from engine.model_error import ModelError
from engine.weights.source import ModelSource
from server.text.tokenizer import Tokenizer, load_tokenizer
from tests.builders.texts import corpus


def byte_level() -> tokenizers.Tokenizer:
    """Like Llama 3's: byte-level, begin-of-sequence by the post-processor."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=800, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(corpus(300), trainer)
    backend.add_special_tokens(["<|begin|>", "<|end|>"])
    backend.add_tokens(["<think> ", "→"])
    return with_bos(backend, "<|begin|>")


def sentencepiece() -> tokenizers.Tokenizer:
    """Like Llama 2's: SentencePiece with byte fallback and a space before every text."""
    learner = tokenizers.Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    structure = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=structure, limit_alphabet=120, show_progress=False
    )
    learner.train_from_iterator([text for text in corpus(300) if "<" not in text], trainer)
    model = json.loads(learner.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    backend = tokenizers.Tokenizer(
        models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in structure[:3]])
    return with_bos(backend, "<s>")


def metaspace() -> tokenizers.Tokenizer:
    """Like newer Mistral files: the space before a text comes from the pre-tokenizer."""
    backend = sentencepiece()
    backend.normalizer = normalizers.Sequence([])
    backend.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [
            decoders.ByteFallback(),
            decoders.Metaspace("▁", prepend_scheme="first", split=False),
            decoders.Fuse(),
        ]
    )
    return backend


def gemma_like() -> tokenizers.Tokenizer:
    """Like Gemma's: SentencePiece without the space, runs of newlines as added tokens."""
    backend = sentencepiece()
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.add_tokens([AddedToken(text, normalized=False) for text in ("\n\n", "▁▁")])
    return backend


def with_bos(backend: tokenizers.Tokenizer, bos: str) -> tokenizers.Tokenizer:
    token_id = backend.token_to_id(bos)
    backend.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, token_id)]
    )
    return backend


def saved(backend: tokenizers.Tokenizer, directory: Path, **config: Any) -> Path:
    backend.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def load(directory: Path) -> Tokenizer:
    return load_tokenizer(ModelSource("huggingface", directory, "tiny"))


@pytest.mark.parametrize("make", [byte_level, sentencepiece, gemma_like])
def test_encoding_and_decoding_are_the_librarys(tmp_path: Path, make: Any):
    backend = make()
    tokenizer = load(saved(backend, tmp_path))
    for text in [*corpus(), "a<think> b <|end|> </s>"]:
        bare = backend.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special=False) == bare
        if not text.startswith(("<s>", "<|begin|>")):
            assert tokenizer.encode(text) == backend.encode(text).ids
        for skip in (True, False):
            expected = backend.decode(bare, skip_special_tokens=skip)
            assert tokenizer.decode(bare, skip_special=skip) == expected, repr(text)


def test_text_comes_back_where_the_pre_tokenizer_puts_the_space(tmp_path: Path):
    """No oracle: the library's Metaspace decoder drops all spaces of the first token, not one."""
    tokenizer = load(saved(metaspace(), tmp_path))
    for text in [text for text in corpus() if not text.startswith((" ", "<"))]:
        assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == "<s>" + " " * bool(text) + text
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text


@pytest.mark.parametrize("make", [byte_level, gemma_like])
def test_every_token_has_its_bytes(tmp_path: Path, make: Any):
    backend = make()
    tokenizer = load(saved(backend, tmp_path))
    ids = range(tokenizer.vocab_size)
    expected = backend.decode_batch([[token] for token in ids], skip_special_tokens=False)
    assert tokenizer.vocab_size == backend.get_vocab_size(with_added_tokens=True)
    assert [tokenizer.token_bytes(token).decode(errors="replace") for token in ids] == expected


def test_an_added_token_reads_as_it_is_spelled(tmp_path: Path):
    """The library's own decoder takes this one for a byte of GPT-2's alphabet."""
    backend = byte_level()
    backend.add_tokens(["é"])
    tokenizer = load(saved(backend, tmp_path))
    assert tokenizer.decode(tokenizer.encode("caé", add_special=False)) == "caé"


def test_what_a_training_run_left_in_the_file_is_ignored(tmp_path: Path):
    backend = byte_level()
    expected = backend.encode("a long enough text to be cut", add_special_tokens=False).ids
    backend.enable_truncation(max_length=3)
    backend.enable_padding(length=64)
    tokenizer = load(saved(backend, tmp_path))
    assert tokenizer.encode("a long enough text to be cut", add_special=False) == expected


@pytest.mark.parametrize(
    ("config", "added"),
    [
        ({"bos_token": "<|begin|>"}, True),
        ({"bos_token": "<|begin|>", "add_bos_token": True}, True),
        ({"bos_token": {"content": "<|begin|>", "lstrip": False}, "add_bos_token": False}, False),
        ({"bos_token": None, "add_bos_token": None}, True),
    ],
)
def test_begin_of_sequence(tmp_path: Path, config: dict[str, Any], added: bool):
    backend = byte_level()
    tokenizer = load(saved(backend, tmp_path, **config))
    bos = backend.token_to_id("<|begin|>")
    bare = tokenizer.encode("hi", add_special=False)
    assert tokenizer.encode("hi") == ([bos, *bare] if added else bare)
    assert tokenizer.encode("<|begin|>hi") == [bos, *bare]


def test_begin_of_sequence_is_added_where_only_the_configuration_says_so(tmp_path: Path):
    backend = byte_level()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer = load(saved(backend, tmp_path, bos_token="<|begin|>", add_bos_token=True))
    assert tokenizer.encode("hi")[0] == tokenizer.bos_id == backend.token_to_id("<|begin|>")


def test_roles_come_from_either_file_and_the_configuration_wins(tmp_path: Path):
    directory = saved(byte_level(), tmp_path, eos_token="<|end|>")
    roles = {"bos_token": "<|begin|>", "eos_token": "<|begin|>", "pad_token": {"content": "<|end|>"}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(roles))
    tokenizer = load(directory)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|begin|>", "<|end|>")
    assert tokenizer.special_tokens["pad_token"] == "<|end|>"
    assert tokenizer.token_bytes(tokenizer.eos_id or 0) == b"<|end|>"


def test_declared_special_tokens_are_skipped_as_in_transformers(tmp_path: Path):
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "additional_special_tokens": ["<think> "],
    }
    directory = saved(byte_level(), tmp_path, **config)
    reference = AutoTokenizer.from_pretrained(directory)
    tokenizer = load(directory)
    ids = tokenizer.encode("a<think> b<|end|>", add_special=False)
    assert ids == reference.encode("a<think> b<|end|>", add_special_tokens=False)
    assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)


def test_a_declared_plain_token_becomes_special(tmp_path: Path):
    backend = byte_level()
    plain = next(token for token in backend.get_vocab() if token.isascii() and len(token) == 2)
    tokenizer = load(saved(backend, tmp_path, eos_token=plain))
    assert tokenizer.is_special(backend.token_to_id(plain))


def test_chat_templates_and_which_file_wins(tmp_path: Path):
    directory = saved(byte_level(), tmp_path, chat_template="from config")
    assert load(directory).chat_templates == {"default": "from config"}
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    saved(byte_level(), tmp_path, chat_template=named)
    assert load(directory).chat_templates == {"default": "plain", "tool_use": "tools"}
    (directory / "chat_template.jinja").write_text("from file é")
    assert load(directory).chat_templates == {"default": "from file é"}
    (directory / "additional_chat_templates").mkdir()
    (directory / "additional_chat_templates" / "tool_use.jinja").write_text("more")
    assert load(directory).chat_templates == {"default": "from file é", "tool_use": "more"}


def test_a_missing_tokenizer_is_explained(tmp_path: Path):
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        load(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(ModelError, match=r"from tokenizer\.model once, .*AutoTokenizer"):
        load(tmp_path)


def test_files_that_are_wrong_are_named(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match=r"tokenizer\.json: not a usable tokenizer"):
        load(tmp_path)
    saved(byte_level(), tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: not a JSON object"):
        load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: not JSON"):
        load(tmp_path)


def test_other_kinds_of_decoder_are_refused(tmp_path: Path):
    backend = byte_level()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="not WordPiece"):
        load(saved(backend, tmp_path))


def test_no_torch_is_loaded():
    names = ("tokenizer", "chat_template", "choice_text", "sampling_defaults")
    modules = ", ".join(f"server.text.{name}" for name in names)
    code = f"import {modules}, sys; sys.exit(bool({{'torch', 'transformers', 'numpy'}} & set(sys.modules)))"
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=60)

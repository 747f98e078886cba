"""A tokenizer from a Hugging Face model directory: tokenizer.json and the files beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from tokenizers import AddedToken

from engine.model_error import ModelError
from server.text.model_files import read_json_object
from server.text.tokenizer.native_errors import NativeErrors
from server.text.tokenizer.tokenizer import Tokenizer
from server.text.tokenizer.vocabulary import Vocabulary, byte_alphabet, byte_level_bytes, sentencepiece_bytes

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def tokenizer_from_directory(directory: Path) -> Tokenizer:
    """Build the tokenizer of a Hugging Face model directory.

    Raises:
        ModelError: there is no tokenizer.json, or one of the files is wrong or of an unknown kind.
    """
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise ModelError(_missing(directory))
    config = read_json_object(directory / "special_tokens_map.json")
    config |= read_json_object(directory / "tokenizer_config.json")
    with NativeErrors(file):
        backend = tokenizers.Tokenizer.from_file(str(file))
        # Training leftovers in the file; a server pads nothing and must not shorten a prompt.
        backend.no_padding()
        backend.no_truncation()
        _add_declared(backend, config)
    special_tokens = {role: text for role in _ROLES if (text := _text(config.get(role))) is not None}
    bos_id, eos_id = (_id(backend, special_tokens.get(role)) for role in ("bos_token", "eos_token"))
    prefix, suffix = _surroundings(backend)
    return Tokenizer(
        backend,
        _vocabulary(backend, file),
        bos_id=bos_id,
        eos_id=eos_id,
        prefix_ids=_with_bos(prefix, bos_id, config.get("add_bos_token")),
        suffix_ids=suffix,
        special_tokens=special_tokens,
        chat_templates=_chat_templates(directory, config),
    )


def _missing(directory: Path) -> str:
    if not (directory / "tokenizer.model").is_file():
        return f"{directory}: no tokenizer.json, so there is no tokenizer to read"
    return (
        f"{directory}: tokenizer.json is missing. Make it from tokenizer.model once, with the packages "
        'transformers, sentencepiece and protobuf: python -c "from transformers import AutoTokenizer; '
        f'AutoTokenizer.from_pretrained({str(directory)!r}).save_pretrained({str(directory)!r})"'
    )


def _add_declared(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Make special what the configuration calls so, where tokenizer.json holds it as a plain token."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    declared = [text for text in _declared(config) if text not in known]
    vocabulary = [text for text in declared if backend.token_to_id(text) is not None]
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in vocabulary])


def _declared(config: Mapping[str, Any]) -> Iterator[str]:
    lists = [config.get(key) for key in ("additional_special_tokens", "extra_special_tokens")]
    values = [config.get(role) for role in _ROLES]
    for listed in lists:
        values += listed.values() if isinstance(listed, dict) else listed if isinstance(listed, list) else []
    return (text for value in values if (text := _text(value)) is not None)


def _text(value: object) -> str | None:
    """A token as the configuration gives it: text, or an object with its flags."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _id(backend: tokenizers.Tokenizer, text: str | None) -> int | None:
    return None if text is None else backend.token_to_id(text)


def _surroundings(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """The ids that the file's post-processor puts before and after a text."""
    bare = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    start = next(i for i in range(len(full)) if full[i : i + len(bare)] == bare)
    return full[:start], full[start + len(bare) :]


def _with_bos(prefix: list[int], bos_id: int | None, add_bos: object) -> list[int]:
    """What the configuration says outright about begin-of-sequence overrules the post-processor."""
    if not isinstance(add_bos, bool) or bos_id is None:
        return prefix
    others = [token for token in prefix if token != bos_id]
    return [bos_id, *others] if add_bos else others


def _vocabulary(backend: tokenizers.Tokenizer, file: Path) -> Vocabulary:
    ids = backend.get_vocab(with_added_tokens=True)
    added = backend.get_added_tokens_decoder()
    steps = _decoder_steps(backend)
    kinds = {step["type"] for step in steps}
    strips = any(_strips_leading_space(step) for step in steps)
    table = [b""] * (max(ids.values(), default=-1) + 1)
    if "ByteLevel" in kinds:
        alphabet = byte_alphabet()
        for token, token_id in ids.items():
            table[token_id] = token.encode() if token_id in added else byte_level_bytes(token, alphabet)
    elif kinds & {"Metaspace", "Replace"}:
        for token, token_id in ids.items():
            table[token_id] = sentencepiece_bytes(token, byte_fallback="ByteFallback" in kinds)
    else:
        found = ", ".join(sorted(kinds)) or "none"
        raise ModelError(f"{file}: only byte-level and SentencePiece decoders are supported, not {found}")
    special = frozenset(token_id for token_id, token in added.items() if token.special)
    return Vocabulary(tuple(table), special, strips)


def _decoder_steps(backend: tokenizers.Tokenizer) -> Sequence[dict[str, Any]]:
    if backend.decoder is None:
        return []
    decoder = msgspec.json.decode(backend.decoder.__getstate__(), type=dict[str, Any])
    steps: list[dict[str, Any]] = decoder.get("decoders", [decoder])
    return steps


def _strips_leading_space(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never")
    return bool(step["type"] == "Strip" and step["content"] == " " and step["start"] == 1)


def _chat_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """By name. Files overrule the configuration, as in transformers."""
    files = {file.stem: file for file in (directory / "additional_chat_templates").glob("*.jinja")}
    if (default := directory / "chat_template.jinja").is_file():
        files["default"] = default
    if files:
        return {name: _template_text(file) for name, file in files.items()}
    declared = config.get("chat_template")
    if isinstance(declared, str):
        return {"default": declared}
    pairs = declared if isinstance(declared, list) else []
    return {
        str(pair["name"]): str(pair["template"])
        for pair in pairs
        if isinstance(pair, dict) and {"name", "template"} <= pair.keys()
    }


def _template_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{file}: the chat template can't be read: {error}") from error

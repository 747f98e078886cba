"""The tokens that end a sequence, from the files of a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import msgspec

from engine.weights.json_file import read_json

TokenIds: TypeAlias = int | list[int] | None
"""How the files give end-of-sequence ids."""


class _EndTokens(msgspec.Struct):
    """config.json and generation_config.json."""

    eos_token_id: TokenIds = None
    text_config: _EndTokens | None = None


class _AddedToken(msgspec.Struct):
    content: str
    id: int | None = None


class _TokenizerConfig(msgspec.Struct):
    """tokenizer_config.json."""

    eos_token: str | _AddedToken | None = None
    added_tokens_decoder: dict[str, _AddedToken] = {}


class _Tokenizer(msgspec.Struct):
    """tokenizer.json, all but its vocabulary."""

    added_tokens: list[_AddedToken] = []


def end_token_ids(directory: Path) -> list[int]:
    """End-of-sequence ids, most authoritative file first; may repeat an id.

    From generation_config.json, config.json and the ``eos_token`` of tokenizer_config.json, whose id
    is looked up among the added tokens.

    Raises:
        ModelError: one of the files is malformed.
    """
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        if (directory / name).exists():
            declared = read_json(directory / name, _EndTokens)
            ids += as_list(declared.eos_token_id)
            ids += as_list(declared.text_config.eos_token_id) if declared.text_config else []
    return ids + _tokenizer_end_ids(directory)


def as_list(ids: TokenIds) -> list[int]:
    """None, one or several ids as a list."""
    return [] if ids is None else [ids] if isinstance(ids, int) else ids


def _tokenizer_end_ids(directory: Path) -> list[int]:
    config_path, tokenizer_path = directory / "tokenizer_config.json", directory / "tokenizer.json"
    if not config_path.exists():
        return []
    config = read_json(config_path, _TokenizerConfig)
    if config.eos_token is None:
        return []
    content = config.eos_token if isinstance(config.eos_token, str) else config.eos_token.content
    ids = {token.content: int(id_) for id_, token in config.added_tokens_decoder.items() if id_.isdecimal()}
    if content not in ids and tokenizer_path.exists():
        tokenizer = read_json(tokenizer_path, _Tokenizer)
        ids |= {token.content: token.id for token in tokenizer.added_tokens if token.id is not None}
    return [ids[content]] if content in ids else []

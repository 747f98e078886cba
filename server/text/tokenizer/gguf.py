"""A tokenizer from the metadata of a GGUF file.

The keys are ggml's (docs/gguf.md, ``tokenizer.ggml.*``). Two models of them are served: ``gpt2``,
byte-level BPE with merge rules, and ``llama``, SentencePiece BPE with scores.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any

import tokenizers
from tokenizers import AddedToken, models, normalizers

from engine.model_error import ModelError
from server.text.tokenizer.native_errors import NativeErrors
from server.text.tokenizer.pre_tokenization import pre_tokenization
from server.text.tokenizer.sentencepiece_merges import merges_from_scores
from server.text.tokenizer.tokenizer import Tokenizer
from server.text.tokenizer.vocabulary import (
    SPACE_MARK,
    Vocabulary,
    byte_alphabet,
    byte_level_bytes,
    sentencepiece_bytes,
)

_KEY = "tokenizer.ggml."
_NAMES = (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding"))
"""What chat templates call a token, and what GGUF does."""
_STRUCTURAL = ("bos", "eos", "eot", "eom")
"""Tokens that are never text, whatever type the file gives them."""

logger = logging.getLogger(__name__)


class TokenType(enum.IntEnum):
    """``tokenizer.ggml.token_type``; SentencePiece's piece types."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The vocabulary as the file has it, checked."""

    spellings: Sequence[str]
    types: Sequence[int]
    roles: Mapping[str, int]
    """Token ids by GGUF's name for their role, like ``bos``."""

    @property
    def special_ids(self) -> frozenset[int]:
        control = (i for i, type_ in enumerate(self.types) if type_ in (TokenType.CONTROL, TokenType.UNKNOWN))
        return frozenset(control) | {self.roles[role] for role in _STRUCTURAL if role in self.roles}

    def ids(self) -> dict[str, int]:
        return {spelling: index for index, spelling in enumerate(self.spellings)}

    def added(self) -> list[AddedToken]:
        """Tokens that are found in the text before anything else happens to it."""
        special = self.special_ids
        return [
            AddedToken(spelling, normalized=False, special=index in special)
            for index, (spelling, type_) in enumerate(zip(self.spellings, self.types, strict=True))
            if index in special or type_ == TokenType.USER_DEFINED
        ]


def tokenizer_from_metadata(metadata: Mapping[str, Any], where: object = "GGUF metadata") -> Tokenizer:
    """Build the tokenizer that a GGUF file describes.

    Args:
        metadata: the file's metadata, arrays as lists.
        where: names the file in error messages.

    Raises:
        ModelError: the kind of tokenizer is not supported, or its metadata is incomplete or wrong.
    """
    kind = metadata.get(_KEY + "model")
    if kind not in ("gpt2", "llama"):
        raise ModelError(f"{where}: tokenizer model {kind!r} is not supported; gpt2 and llama are")
    tokens = _tokens(metadata, where)
    with NativeErrors(where):
        if kind == "gpt2":
            backend, vocabulary, add_bos = _byte_level(metadata, tokens, where)
        else:
            backend, vocabulary, add_bos = _sentencepiece(metadata, tokens, where)
        backend.add_tokens(tokens.added())
    bos_id, eos_id = tokens.roles.get("bos"), tokens.roles.get("eos")
    add_bos = bool(metadata.get(_KEY + "add_bos_token", add_bos))
    add_eos = bool(metadata.get(_KEY + "add_eos_token", False))
    return Tokenizer(
        backend,
        vocabulary,
        bos_id=bos_id,
        eos_id=eos_id,
        prefix_ids=[bos_id] if add_bos and bos_id is not None else [],
        suffix_ids=[eos_id] if add_eos and eos_id is not None else [],
        special_tokens={
            name: tokens.spellings[tokens.roles[role]] for name, role in _NAMES if role in tokens.roles
        },
        chat_templates=_chat_templates(metadata),
    )


def _byte_level(
    metadata: Mapping[str, Any], tokens: _Tokens, where: object
) -> tuple[tokenizers.Tokenizer, Vocabulary, bool]:
    name = metadata.get(_KEY + "pre")
    if name is None:
        logger.warning("%s: tokenizer.ggml.pre is missing; the oldest files' way to cut text is used", where)
    rules = pre_tokenization("default" if name is None else str(name), where)
    merges = [_merge(rule) for rule in _array(metadata, "merges", str, where)]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=tokens.ids(), merges=merges, ignore_merges=rules.ignore_merges)
    )
    if (normalizer := rules.normalizer()) is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = rules.pre_tokenizer()
    alphabet = byte_alphabet()
    table = tuple(
        byte_level_bytes(spelling, alphabet) if type_ == TokenType.NORMAL else _literal(spelling, type_)
        for spelling, type_ in zip(tokens.spellings, tokens.types, strict=True)
    )
    return backend, Vocabulary(table, tokens.special_ids), rules.add_bos


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: _Tokens, where: object
) -> tuple[tokenizers.Tokenizer, Vocabulary, bool]:
    scores = _array(metadata, "scores", int | float, where)
    if len(scores) != len(tokens.spellings):
        raise ModelError(f"{where}: {len(tokens.spellings)} tokens have {len(scores)} scores")
    mergeable = {
        spelling: float(score)
        for spelling, type_, score in zip(tokens.spellings, tokens.types, scores, strict=True)
        if type_ in (TokenType.NORMAL, TokenType.UNUSED)
    }
    unknown = tokens.roles.get("unknown")
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=tokens.ids(),
            merges=merges_from_scores(mergeable),
            unk_token=None if unknown is None else tokens.spellings[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    space_prefix = bool(metadata.get(_KEY + "add_space_prefix", True))
    marks = normalizers.Replace(" ", SPACE_MARK)
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE_MARK), marks]) if space_prefix else marks
    )
    table = tuple(
        _literal(spelling, type_)
        if type_ in (TokenType.CONTROL, TokenType.UNUSED)
        else sentencepiece_bytes(spelling)
        for spelling, type_ in zip(tokens.spellings, tokens.types, strict=True)
    )
    return backend, Vocabulary(table, tokens.special_ids, strips_leading_space=space_prefix), True


def _literal(spelling: str, type_: int) -> bytes:
    """A token that is spelled as it reads; unused ones are padding and read as nothing."""
    return b"" if type_ == TokenType.UNUSED else spelling.encode()


def _merge(rule: str) -> tuple[str, str]:
    """The two parts of ``left right``; a left part may itself begin with a space."""
    cut = rule.find(" ", 1)
    return rule[:cut], rule[cut + 1 :]


def _tokens(metadata: Mapping[str, Any], where: object) -> _Tokens:
    listed = _array(metadata, "tokens", str, where)
    spellings = [token or f"[EMPTY_{index}]" for index, token in enumerate(listed)]
    if len(set(spellings)) != len(spellings):
        raise ModelError(f"{where}: tokenizer.ggml.tokens holds a token twice")
    types: Sequence[int] = [TokenType.NORMAL] * len(spellings)
    if _KEY + "token_type" in metadata:
        types = _array(metadata, "token_type", int, where)
    if len(types) != len(spellings):
        raise ModelError(f"{where}: {len(spellings)} tokens have {len(types)} types")
    return _Tokens(spellings, types, _roles(metadata, len(spellings), where))


def _roles(metadata: Mapping[str, Any], vocab_size: int, where: object) -> dict[str, int]:
    roles = {}
    for role in ("bos", "eos", "eot", "eom", "unknown", "padding"):
        token_id = metadata.get(f"{_KEY}{role}_token_id")
        if type(token_id) is int and 0 <= token_id < vocab_size:
            roles[role] = token_id
        elif token_id is not None:  # converters write -1 as an unsigned number for "none"
            logger.warning("%s: %s token id %s is outside the vocabulary and not used", where, role, token_id)
    return roles


def _array(metadata: Mapping[str, Any], name: str, element: type | UnionType, where: object) -> Sequence[Any]:
    value = metadata.get(_KEY + name)
    if not isinstance(value, list) or not value:
        raise ModelError(f"{where}: {_KEY}{name} is missing or empty")
    if not all(isinstance(item, element) for item in value):
        raise ModelError(f"{where}: {_KEY}{name} holds an element of the wrong type")
    return value


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    names = metadata.get(prefix + "s")
    named = {name: metadata.get(f"{prefix}.{name}") for name in names} if isinstance(names, list) else {}
    templates = {"default": metadata.get(prefix), **named}
    return {name: template for name, template in templates.items() if isinstance(template, str)}

"""What each token id stands for: its bytes, and whether it is part of the text at all.

Two spellings exist. Byte-level BPE (GPT-2, Llama 3, Qwen) writes each byte as one printable
character. SentencePiece (Llama 2, Mistral, Gemma) writes a space as U+2581 and a byte outside its
alphabet as ``<0xXX>``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

SPACE_MARK = "\u2581"
"""How SentencePiece spells a space."""

_BYTE_SPELLING = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenTable(Protocol):
    """What turning token ids into text needs to know."""

    @property
    def strips_leading_space(self) -> bool:
        """Whether a whole text loses one leading space that encoding had put there."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token; empty for an id that no token has."""

    def is_special(self, token_id: int) -> bool:
        """Whether the token marks structure and is no part of the text."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The bytes of every token, by id."""

    table: tuple[bytes, ...]
    special_ids: frozenset[int] = frozenset()
    strips_leading_space: bool = False

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token; empty for an id that no token has.

        A model's embedding often has more rows than its tokenizer has tokens.
        """
        return self.table[token_id] if 0 <= token_id < len(self.table) else b""

    def is_special(self, token_id: int) -> bool:
        """Whether the token marks structure and is no part of the text."""
        return token_id in self.special_ids

    def decode_bytes(self, token_ids: Iterable[int], skip_special: bool = True) -> bytes:
        """The bytes of a whole text; they may end within a character."""
        hidden = self.special_ids if skip_special else frozenset()
        data = b"".join(self.token_bytes(token) for token in token_ids if token not in hidden)
        return data.removeprefix(b" ") if self.strips_leading_space else data


def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet, from character to byte.

    Printable Latin-1 bytes stand for themselves, the others for U+0100 and up in byte order
    (``bytes_to_unicode`` in OpenAI's gpt-2 repository, encoder.py).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


def byte_level_bytes(token: str, alphabet: Mapping[str, int]) -> bytes:
    """Bytes of a byte-level token; one with a character outside the alphabet stands for itself."""
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode()


def sentencepiece_bytes(token: str, byte_fallback: bool = True) -> bytes:
    """Bytes of a SentencePiece token."""
    if byte_fallback and (match := _BYTE_SPELLING.fullmatch(token)):
        return bytes([int(match[1], 16)])
    return token.replace(SPACE_MARK, " ").encode()

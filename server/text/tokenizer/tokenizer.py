"""The tokenizer the server works with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import tokenizers
from tokenizers import AddedToken

from server.text.plain_text import PlainText
from server.text.tokenizer.vocabulary import Vocabulary


class UnencodableTextError(ValueError):
    """A client's text holds a lone surrogate, so it is no Unicode text and has no tokens."""


class Tokenizer:
    """Encodes text and knows the bytes of every token. Safe to use from several threads."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        vocabulary: Vocabulary,
        *,
        bos_id: int | None = None,
        eos_id: int | None = None,
        prefix_ids: Sequence[int] = (),
        suffix_ids: Sequence[int] = (),
        special_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        self._backend = backend
        self._prefix = list(prefix_ids)
        self._suffix = list(suffix_ids)
        self.vocabulary = vocabulary
        self.plain_text = PlainText(
            vocabulary.token_bytes(token_id).decode(errors="replace") for token_id in vocabulary.special_ids
        )
        """What users write in place of special tokens, and how it is kept from becoming them."""
        backend.add_special_tokens([AddedToken(self.plain_text.mark, normalized=False, special=True)])
        self._mark_id = backend.token_to_id(self.plain_text.mark)
        self.bos_id = bos_id
        self.eos_id = eos_id
        self.special_tokens = dict(special_tokens or {})
        """By role (``bos_token``, ``eos_token``, ...), as chat templates name them."""
        self.chat_templates = dict(chat_templates or {})
        """Jinja sources by name; the usual one is ``default``, one for tools ``tool_use``."""

    @property
    def vocab_size(self) -> int:
        """Token ids the tokenizer knows; the model's embedding may have more rows."""
        return len(self.vocabulary.table)

    @property
    def bos_token(self) -> str | None:
        """The begin-of-sequence token's text, if the model has one."""
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        """The end-of-sequence token's text, if the model has one."""
        return self.special_tokens.get("eos_token")

    @property
    def strips_leading_space(self) -> bool:
        """Whether a whole text loses one leading space that encoding had put there."""
        return self.vocabulary.strips_leading_space

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token; empty for an id that no token has."""
        return self.vocabulary.token_bytes(token_id)

    def is_special(self, token_id: int) -> bool:
        """Whether the token marks structure and is no part of the text."""
        return self.vocabulary.is_special(token_id)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of a text. Special tokens spelled out in it become those tokens, but for those
        that ``plain_text.protect`` has marked.

        Runs mostly without the GIL, so a worker thread can encode while the event loop goes on.

        Args:
            text: any Unicode text, also empty.
            add_special: also add what the tokenizer puts around a text, begin-of-sequence for
                most, unless the text begins with it already. A rendered chat template is complete
                without it.

        Raises:
            UnencodableTextError: the text holds a lone surrogate.
        """
        _refuse_surrogates(text)
        # A single encode would keep the GIL for the whole text; the batch call lets go of it.
        ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if self.plain_text.mark in text:
            ids = [token_id for token_id in ids if token_id != self._mark_id]
        return self._with_special(ids) if add_special else ids

    def decode_bytes(self, token_ids: Iterable[int], skip_special: bool = True) -> bytes:
        """The bytes of a whole text; they may end within a character."""
        return self.vocabulary.decode_bytes(token_ids, skip_special)

    def decode(self, token_ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of a whole sequence of ids; bytes that are no UTF-8 become U+FFFD."""
        return self.decode_bytes(token_ids, skip_special).decode(errors="replace")

    def _with_special(self, ids: list[int]) -> list[int]:
        prefix = [] if self._prefix == ids[: len(self._prefix)] else self._prefix
        return prefix + ids + self._suffix


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnencodableTextError(
            f"the text is not valid Unicode: a lone surrogate (U+{ord(text[error.start]):04X}) "
            f"at character {error.start}"
        ) from error

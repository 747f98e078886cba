"""Keeps what users write from becoming control tokens.

A tokenizer turns ``<|im_end|>`` into the token that ends a turn wherever it stands, so a user who writes it
could speak as somebody else. Where users' text goes into a chat template, a mark is put into every such
spelling. The tokenizer knows the mark as a token of its own, so it cuts the spelling in two before anything
else is looked for, and then the mark's id is left out.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from typing import Any


class PlainText:
    """The mark of one tokenizer, and where it has to go.

    Args:
        spellings: of the control tokens.
        mark: one that no text has; random by default, so that no user can write it.
    """

    def __init__(self, spellings: Iterable[str], mark: str = "") -> None:
        # A single character can't be cut in two; no control token is spelled so.
        self.spellings = tuple(sorted({text for text in spellings if len(text) > 1}, key=len, reverse=True))
        self.mark = mark or f"\ufdd0{secrets.token_hex(8)}\ufdd1"
        self._pattern = re.compile("|".join(map(re.escape, self.spellings))) if self.spellings else None

    def protect(self, value: Any) -> Any:  # noqa: ANN401 - any JSON value
        """The value, with the mark in every control token's spelling in it; keys of objects too."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self._pattern.sub(self._cut, value)
        if isinstance(value, dict):
            return {self.protect(key): self.protect(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.protect(item) for item in value]
        return value

    def _cut(self, found: re.Match[str]) -> str:
        return found[0][0] + self.mark + found[0][1:]

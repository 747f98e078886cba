"""Text to the token ids of a prompt, without spending seconds on one that is far too long."""

from __future__ import annotations

from server.http.errors import bad_request, context_length_exceeded
from server.text.tokenizer import Tokenizer, UnencodableTextError

LONG = 8
"""Characters a token of context from which on a text is counted before it is encoded as a whole."""
PIECE = 32 * 1024
"""Characters counted at a time."""
CUT_TOKENS = 64
"""More tokens than a cut through a text can add."""


def encode_prompt(
    text: str, tokenizer: Tokenizer, *, context_length: int, add_special: bool, param: str
) -> tuple[int, ...]:
    """The token ids of a prompt; may be more than ``context_length``, but not vastly.

    Args:
        text: the prompt.
        tokenizer: the model's.
        context_length: tokens that the model's context holds.
        add_special: whether the tokenizer's own special tokens are added.
        param: the field to blame.

    Raises:
        ApiError: 400, the text is far too long or no valid Unicode.
    """
    try:
        if len(text) > LONG * context_length:
            _refuse_far_too_long(text, tokenizer, context_length, param)
        return tuple(tokenizer.encode(text, add_special=add_special))
    except UnencodableTextError as error:
        raise bad_request(f"'{param}' can't be encoded: {error}.", "invalid_value", param) from None


def _refuse_far_too_long(text: str, tokenizer: Tokenizer, context_length: int, param: str) -> None:
    """Counts piece by piece, and stops at the first that is one too many for sure."""
    tokens = 0
    for start in range(0, len(text), PIECE):
        piece = tokenizer.encode(text[start : start + PIECE], add_special=False)
        tokens += max(len(piece) - CUT_TOKENS, 0)
        if tokens > context_length:
            raise context_length_exceeded(context_length, tokens, 0, param, at_least=True)

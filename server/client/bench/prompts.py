"""Prompts of a wanted number of tokens, made without knowing the server's tokenizer."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

_TEXT = """\
the of and to in is you that it he was for on are as with his they at be this have from or one had by
word but not what all were we when your can said there use an each which she do how their if will up
other about out many then them these so some her would make like him into time has look two more write
go see number no way could people my than first water been call who now find long down day did get come
made may part over new sound take only little work know place year live back give most very after thing
our just name good man think say great where help through much before line right too mean old any same
tell boy follow came want show also around form three small set put end does another well large must big
even such because turn here why ask went men read need land different home us move try kind hand picture
again change off play spell air away animal house point page letter mother answer found study still
learn should world
"""
WORDS = tuple(_TEXT.split())
"""Common English words: with a space before, nearly every vocabulary has them as single tokens."""

_TRIES = 4


def random_text(words: int, rng: random.Random) -> str:
    """So many random words. Two texts share no beginning to speak of, so prefix caches don't help."""
    return " ".join(rng.choices(WORDS, k=words))


async def words_for(tokens: int, count_tokens: Callable[[int], Awaitable[int | None]]) -> int:
    """How many words make a prompt of ``tokens`` tokens, the server's template included.

    Args:
        tokens: the wanted size.
        count_tokens: sends a prompt of so many words and returns its size in tokens, None if the
            server doesn't tell.

    Returns:
        The number of words, at least 1: the exact one, or after a few tries the nearest.
    """
    words, known = tokens, dict[int, int]()
    for _ in range(_TRIES):
        if words not in known:
            counted = await count_tokens(words)
            if counted is None:
                return words
            known[words] = counted
        if known[words] == tokens:
            return words
        words = max(1, words + round((tokens - known[words]) / _tokens_per_word(known)))
    return min(known, key=lambda tried: abs(known[tried] - tokens))


def _tokens_per_word(known: dict[int, int]) -> float:
    """Slope between the last two sizes tried; 1 as long as it can't be told."""
    if len(known) < 2:
        return 1.0
    (words, tokens), (more_words, more_tokens) = list(known.items())[-2:]
    return max((more_tokens - tokens) / (more_words - words), 0.5)

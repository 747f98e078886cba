"""Merge rules for a SentencePiece BPE vocabulary, which stores scores instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


def merges_from_scores(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """All (left, right) pairs that make a token, in the order SentencePiece would merge them.

    SentencePiece always merges the neighbours whose union scores highest, so the rules that make a
    token rank by its score. Among rules for one token the longest left part comes first, as in the
    tokenizer.json files that transformers writes (``generate_merges``).

    Args:
        scores: for each token that merging may use or make. Linear in their total length; a
            vocabulary of 262,144 takes about a second.
    """
    best_first = sorted(scores, key=scores.__getitem__, reverse=True)
    return [pair for token in best_first for pair in _splits(token, scores)]


def _splits(token: str, vocabulary: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    for cut in range(len(token) - 1, 0, -1):
        left, right = token[:cut], token[cut:]
        if left in vocabulary and right in vocabulary:
            yield left, right

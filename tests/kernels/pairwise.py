"""Fewer cases than all combinations: every two values of two factors meet in one of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

TRIES = 30


def pairwise(factors: Mapping[str, Sequence[Any]], seed: int = 0) -> list[dict[str, Any]]:
    """Greedily: the best of some random cases with a pair that is still missing, again and again."""
    rng = random.Random(seed)
    names = list(factors)

    def pairs(case: Mapping[str, int]) -> set[tuple[str, int, str, int]]:
        return {(a, case[a], b, case[b]) for a, b in combinations(names, 2)}

    missing = {
        (a, i, b, j)
        for a, b in combinations(names, 2)
        for i in range(len(factors[a]))
        for j in range(len(factors[b]))
    }
    cases = []
    while missing:
        a, i, b, j = min(missing)
        tries = [{n: rng.randrange(len(factors[n])) for n in names} | {a: i, b: j} for _ in range(TRIES)]
        best = max(tries, key=lambda case: len(pairs(case) & missing))
        missing -= pairs(best)
        cases.append({name: factors[name][index] for name, index in best.items()})
    return cases

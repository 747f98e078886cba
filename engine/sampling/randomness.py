"""Random numbers without state: each is a function of (seed, choice, position) alone."""

from __future__ import annotations

import numpy as np

_UINT64 = (1 << 64) - 1


def uniform(seed: int, choice: int, position: int) -> float:
    """A uniform float64 in [0, 1): a multiple of 2**-53.

    It is the first word of Philox-4x64-10 (Salmon et al., SC 2011) under the key (seed, choice) at
    the counter (1, position, 0, 0); numpy steps the counter before it generates, hence the 1. Being
    counter-based, it does not depend on what was drawn before or what else is in the batch.

    Args:
        seed: any integer; taken modulo 2**64.
        choice: choice index within the request.
        position: output tokens before this one.
    """
    generator = np.random.Philox(
        key=np.array([seed & _UINT64, choice], dtype=np.uint64),
        counter=np.array([0, position, 0, 0], dtype=np.uint64),
    )
    return (int(generator.random_raw()) >> 11) * 2.0**-53

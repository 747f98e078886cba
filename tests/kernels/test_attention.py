"""Native attention against float64, on every instruction set this machine has."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.kernels import _native
from tests.kernels.attention_case import FORMATS, Case, Storage

INSTRUCTION_SETS = _native.instruction_sets()
RAGGED = ((1, 0), (1, 15), (1, 16), (1, 300), (1, 63), (1, 1100), (5, 0), (40, 3), (130, 70))
ROUNDING = {torch.float32: 3e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Half a unit in the last place of an output, or what float32 sums lose."""


def check(case: Case, instruction_set: str, threads: int = 1) -> None:
    storage = Storage(case, instruction_set, threads)
    for layer in range(case.layers):
        output, expected = storage.attend(layer).double().numpy(), storage.expected(layer)
        scale = np.abs(expected).max(initial=1e-3)
        assert np.abs(output - expected).max() <= ROUNDING[case.io] * scale


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("kv", FORMATS, ids=str)
def test_formats_and_head_sizes(kv: torch.dtype, dim: int, instruction_set: str) -> None:
    for page_size, io in zip((8, 16, 32), (torch.float32, torch.bfloat16, torch.float16), strict=True):
        check(Case(sequences=RAGGED, dim=dim, kv=kv, io=io, page_size=page_size), instruction_set)

"""Packed weights multiply like plain ones at every row count, with few compiled shapes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from engine.models.layers import DenseLinear, PackedLinear, make_linear, packing_helps, padded_rows


def test_rows_are_padded_to_few_counts():
    counts = [padded_rows(rows) for rows in range(1, 513)]
    assert all(padded >= rows for rows, padded in enumerate(counts, start=1))
    assert counts == sorted(counts)
    assert len(set(counts)) == 32
    assert [padded_rows(rows) for rows in (1, 8, 9, 16, 33, 64, 65, 512)] == [1, 8, 12, 16, 40, 64, 96, 512]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 13, 16, 30, 41, 64, 70])
def test_equals_the_plain_product(rows: int, bias: bool):
    if not packing_helps(torch.bfloat16):
        assert isinstance(make_linear(torch.zeros(4, 4, dtype=torch.bfloat16)), DenseLinear)
        return
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(48, 40, generator=generator)
    offset = torch.randn(48, generator=generator).bfloat16() if bias else None
    x = torch.randn(rows, 40, generator=generator).bfloat16()
    exact = F.linear(x.double(), weight.bfloat16().double(), None if offset is None else offset.double())
    with torch.inference_mode():
        product = PackedLinear(weight.bfloat16(), offset)(x)
    assert product.shape == (rows, 48)
    assert torch.allclose(product.double(), exact, rtol=2**-7, atol=2**-5)

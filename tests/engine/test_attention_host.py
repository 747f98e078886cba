"""Both host attentions against dense attention in float64, over ragged mixed batches and odd page tables."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.attention.choice import host_attention
from engine.attention.host_decode import groups_of_like_size
from engine.batch import make_batch
from engine.kernels.loader import load_kernels
from engine.kv_storage import KVStorage
from engine.models.config import ModelConfig
from scheduler.plan import ScheduledSequence
from scheduler.types import SequenceId

LAYERS = 2
"""Layer 0 attends to everything, layer 1 slides if there is a window."""


@dataclass(frozen=True)
class Case:
    page_size: int
    kv_heads: int
    group: int
    dim: int
    window: int | None
    scheduled: tuple[tuple[int, int], ...]
    """(start, tokens) of each sequence."""


def config(case: Case) -> ModelConfig:
    heads = case.kv_heads * case.group
    return ModelConfig(
        family="llama", name="attention", vocab_size=8, hidden_size=8, intermediate_size=8,
        num_layers=LAYERS, num_heads=heads, num_kv_heads=case.kv_heads, head_dim=case.dim,
        context_length=4096, rms_norm_eps=1e-5, rope_theta=1e4, attention_scale=0.3,
        sliding_window=case.window, sliding_layers=(False, case.window is not None),
    )  # fmt: skip


def dense_attention(
    q: Tensor, kv: Tensor, start: int, window: int | None, scale: float
) -> tuple[Tensor, float]:
    """float64: q [n, heads, dim] of positions from ``start``; kv [start + n, 2, kv_heads, dim].

    Also what float32 may be off by: a score's rounding grows with it, and moves the weights by as much.
    """
    group = q.shape[1] // kv.shape[2]
    keys, values = kv.double().repeat_interleave(group, dim=2).unbind(1)
    scores = torch.einsum("qhd,khd->hqk", q.double(), keys) * scale
    query = torch.arange(start, start + len(q))[:, None]
    key = torch.arange(len(kv))[None, :]
    visible = (key <= query) & (key > query - (window or math.inf))
    weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
    rounding = float(torch.finfo(torch.float32).eps * scores.abs().max() * values.abs().max())
    return torch.einsum("hqk,khd->qhd", weights, values).reshape(len(q), -1), rounding


both = pytest.mark.parametrize("kernels", ["torch", "auto"])


def check(case: Case, seed: int, kernels: str) -> None:
    """Fill pages with all tokens before the chunks, run one iteration, compare every row and layer."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    cfg = config(case)
    pages = [-(-(start + n) // case.page_size) for start, n in case.scheduled]
    storage = KVStorage(cfg, sum(pages) + 1, case.page_size, torch.float32)
    storage.tokens.fill_(torch.nan)
    free = rng.sample(range(sum(pages) + 1), sum(pages))
    kv = [torch.randn(LAYERS, start + n, 2, case.kv_heads, case.dim) for start, n in case.scheduled]
    q = [torch.randn(LAYERS, n, case.kv_heads * case.group, case.dim) for _, n in case.scheduled]
    sequences = []
    for index, (start, n) in enumerate(case.scheduled):
        table = [free.pop() for _ in range(pages[index])]
        for position in range(start):
            page, offset = table[position // case.page_size], position % case.page_size
            if offset == 0:
                storage.tokens[page] = 0
            storage.tokens[page, :, :, :, offset] = kv[index][:, position]
        sequences.append(
            ScheduledSequence(
                sequence_id=SequenceId(index), token_ids=(index,) * n, start=start,
                page_table=tuple(table), sample=None,
            )
        )  # fmt: skip
    batch = make_batch(sequences, case.page_size)
    plan = host_attention(cfg, storage, torch.float32, load_kernels(kernels, 2)).plan(batch)
    owners = batch.token_ids
    for layer in range(LAYERS):
        new_kv = torch.empty(len(owners), 2, case.kv_heads, case.dim)
        new_q = torch.empty(len(owners), case.kv_heads * case.group, case.dim)
        for index, (start, _) in enumerate(case.scheduled):
            new_kv[owners == index] = kv[index][layer, start:]
            new_q[owners == index] = q[index][layer]
        plan.append(layer, new_kv)
        output = plan.attend(layer, new_q)
        window = case.window if layer == 1 else None
        for index, (start, _) in enumerate(case.scheduled):
            expected, rounding = dense_attention(
                q[index][layer], kv[index][layer], start, window, cfg.attention_scale
            )
            atol = max(2e-6, rounding)
            torch.testing.assert_close(output[owners == index].double(), expected, atol=atol, rtol=2e-5)


@both
@pytest.mark.parametrize("page_size", [8, 16, 32])
@pytest.mark.parametrize("window", [None, 1, 5, 16, 33])
@pytest.mark.parametrize(("kv_heads", "group"), [(1, 1), (3, 3), (2, 4)])
def test_ragged_mixed_batches(page_size: int, window: int | None, kv_heads: int, group: int, kernels: str):
    scheduled = ((0, 1), (70, 1), (15, 1), (0, 20), (16, 16), (31, 1), (32, 7), (5, 40), (64, 1), (7, 1))
    check(Case(page_size, kv_heads, group, 16, window, scheduled), page_size + kv_heads, kernels)


@both
def test_decode_lengths_far_apart_make_several_groups(kernels: str):
    lengths = (1000, 3, 400, 410, 0, 8, 7, 390)
    check(Case(8, 2, 2, 16, 50, tuple((length, 1) for length in lengths)), 1, kernels)


@both
def test_whole_blocks_of_keys_hidden_by_the_window(kernels: str):
    """Fused attention works through keys in blocks of some hundred; its first ones are wholly masked."""
    check(Case(16, 1, 2, 16, 16, ((1200, 1), (0, 1300), (700, 650))), 2, kernels)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sequence = st.tuples(st.integers(0, 90), st.one_of(st.just(1), st.integers(1, 50)))
    return Case(
        page_size=draw(st.sampled_from([8, 16, 32])),
        kv_heads=draw(st.integers(1, 3)),
        group=draw(st.integers(1, 4)),
        dim=draw(st.sampled_from([16, 48])),
        window=draw(st.one_of(st.none(), st.integers(1, 100))),
        scheduled=tuple(draw(st.lists(sequence, min_size=1, max_size=6))),
    )


@given(cases(), st.integers(0, 2**32 - 1), st.sampled_from(["torch", "auto"]))
def test_any_batch(case: Case, seed: int, kernels: str):
    check(case, seed, kernels)


def test_a_shape_that_kernels_do_not_know_is_computed_by_torch(caplog: pytest.LogCaptureFixture):
    check(Case(8, 2, 2, 24, None, ((0, 5), (9, 1))), 3, "auto")
    assert "head size" in caplog.text


@given(st.lists(st.integers(1, 60), max_size=40), st.integers(0, 50))
def test_groups_cover_all_rows_in_order_and_pad_little(sizes: list[int], allowed: int):
    groups = list(groups_of_like_size(np.array(sizes, dtype=np.int64), allowed))
    assert [row for rows in groups for row in range(rows.start, rows.stop)] == list(range(len(sizes)))
    for rows in groups:
        assert max(sizes[rows]) * (rows.stop - rows.start) - sum(sizes[rows]) <= allowed
    for first, second in itertools.pairwise(groups):
        joined = sizes[first.start : second.start + 1]
        assert max(joined) * len(joined) - sum(joined) > allowed, "cut where it need not be"

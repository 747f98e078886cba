"""A plan used again and again, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine.kernels import _native
from tests.kernels.attention_case import INSTRUCTION_SETS, Case, Storage

EACH_SET = pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
LAYOUT: dict[str, Any] = {
    "layers": 1,
    "heads": 4,
    "kv_heads": 2,
    "dim": 64,
    "page_size": 8,
    "kv_format": 0,
    "io_format": 0,
    "scale": 1.0,
    "softcap": 0.0,
    "windows": [0],
    "num_pages": 4,
}
PAGES = np.zeros(4 * 2 * 2 * 8 * 256 * 4, dtype=np.uint8)


def make_plan(**changes: Any) -> _native.AttentionPlan:
    layout = {**LAYOUT, "pages": PAGES.ctypes.data, **changes}
    return _native.AttentionPlan(
        _native.AttentionContext(
            _native.ThreadPool(1, [], 0), layout.pop("instruction_set", "scalar"), **layout
        )
    )


def prepare(
    plan: _native.AttentionPlan, rows: int, start: int, page_ids: list[int], sequences: int = 1
) -> None:
    arrays = [np.array(each, dtype=np.int64) for each in ([rows], [start], [0, len(page_ids)], page_ids)]
    plan.prepare(sequences, *(each.ctypes.data for each in arrays))


@EACH_SET
@pytest.mark.parametrize("threads", [1, 3])
def test_batches_one_after_another(threads: int, instruction_set: str) -> None:
    """Smaller ones and larger ones, with rows that are cut and without."""
    case = Case(sequences=((1, 1200), (1, 40), (1, 600), (30, 10), (1, 1299)), windows=(0, 300))
    storage = Storage(case, instruction_set, threads)
    first_rows = np.cumsum([0, *(rows for rows, _ in case.sequences)])
    wanted = [storage.attend(layer) for layer in range(case.layers)]
    for which in ([1], [0, 2, 4], [3], [0, 1, 2, 3, 4], [4], [1, 3], [2, 0]):
        storage.prepare([case.sequences[i] for i in which], which)
        rows = torch.cat([torch.arange(first_rows[i], first_rows[i + 1]) for i in which])
        for layer in range(case.layers):
            queries = storage.queries[layer][rows]
            output = torch.full_like(queries, torch.nan)
            storage.plan.attend(layer, queries.data_ptr(), output.data_ptr())
            torch.testing.assert_close(output, wanted[layer][rows], atol=0, rtol=0)


def test_an_empty_batch_and_an_unprepared_plan_do_nothing() -> None:
    plan = make_plan()
    for prepared in (False, True):
        if prepared:
            prepare(plan, 1, 0, [], sequences=0)
        plan.append(0, 0)
        plan.attend(0, 0, 0)


def test_a_refused_batch_leaves_the_last_one_planned() -> None:
    storage = Storage(Case(sequences=((1, 100), (5, 20))), INSTRUCTION_SETS[0])
    expected = storage.attend()
    with pytest.raises(ValueError, match="sequence 0"):
        storage.prepare([(1, 4000), (5, 20)])
    assert torch.equal(storage.attend(), expected)


@pytest.mark.parametrize(
    ("rows", "start", "page_ids", "message"),
    [
        (1, 0, [4], "no page 4"),
        (1, 0, [-1], "no page -1"),
        (1, 0, [1, 4], "no page 4"),
        (1, 0, [], "sequence 0"),
        (1, 8, [2], "sequence 0"),
        (9, 0, [2], "sequence 0"),
        (3, 6, [2], "sequence 0"),
        (0, 0, [2], "sequence 0"),
        (-1, 0, [2], "sequence 0"),
        (1, -1, [2], "sequence 0"),
        (2**31, 0, [2], "sequence 0"),
    ],
)
def test_batches_that_do_not_fit(rows: int, start: int, page_ids: list[int], message: str) -> None:
    plan = make_plan()
    with pytest.raises(ValueError, match=message):
        prepare(plan, rows, start, page_ids)


@pytest.mark.parametrize(("rows", "start", "page_ids"), [(8, 0, [3]), (1, 7, [0]), (2, 7, [3, 0])])
def test_batches_that_just_fit(rows: int, start: int, page_ids: list[int]) -> None:
    prepare(make_plan(), rows, start, page_ids)


@pytest.mark.parametrize("layer", [-1, 1])
def test_unknown_layers(layer: int) -> None:
    plan = make_plan()
    for call in (plan.append, plan.attend, plan.append_and_attend):
        with pytest.raises(IndexError, match="layer"):
            call(layer, *[0] * {"append": 1, "attend": 2}.get(call.__name__, 3))


@pytest.mark.parametrize(
    "changes",
    [
        {"dim": 24},
        {"dim": 272},
        {"dim": 0},
        {"heads": 65, "kv_heads": 1},
        {"heads": 5},
        {"heads": 0},
        {"kv_heads": 0},
        {"layers": 0, "windows": []},
        {"page_size": 0},
        {"num_pages": 0},
        {"pages": 0},
        {"windows": [-1]},
        {"windows": [0, 0]},
        {"kv_format": 4},
        {"kv_format": -1},
        {"io_format": 3},
        {"instruction_set": "sse9"},
    ],
    ids=str,
)
def test_layouts_without_kernels(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        make_plan(**changes)


@pytest.mark.parametrize("changes", [{"dim": 16}, {"dim": 256}, {"heads": 64, "kv_heads": 1}], ids=str)
def test_layouts_at_the_limits(changes: dict[str, Any]) -> None:
    make_plan(**changes)


@pytest.mark.parametrize("kv_format", range(4))
def test_page_bytes(kv_format: int) -> None:
    context = _native.AttentionContext(
        _native.ThreadPool(1, [], 0), "auto", **{**LAYOUT, "kv_format": kv_format}, pages=PAGES.ctypes.data
    )
    element, scale = {0: (4, 0), 1: (2, 0), 2: (2, 0), 3: (1, 4)}[kv_format]
    assert context.page_bytes == 2 * 2 * 8 * (64 * element + scale)

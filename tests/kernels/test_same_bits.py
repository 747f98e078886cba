"""What changes no bit of a row's result: threads, the rest of the batch, and how a prompt is cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.kernels import _native
from tests.kernels.attention_case import FORMATS, INSTRUCTION_SETS, Case, Storage

EACH_SET = pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
LONG_ROWS = ((1, 1299), (1, 700), (1, 30))
SHORT_ROWS = tuple((1, length) for length in range(90, 120))
CASES = {
    "decode": Case(sequences=LONG_ROWS, kv_heads=3),
    # Many heads are cut into smaller tiles than one, and how many go together depends on threads and rows.
    "decode-many-heads": Case(sequences=LONG_ROWS[:2], kv_heads=8, group=2, dim=128, windows=(0, 600)),
    "decode-many-rows": Case(sequences=(LONG_ROWS[0], *SHORT_ROWS), kv_heads=8, group=1, dim=128),
    "decode-int8": Case(sequences=LONG_ROWS, kv_heads=8, group=5, dim=96, kv=torch.int8, page_size=7),
    "prefill": Case(sequences=((150, 0), (60, 400)), group=4, windows=(0, 100)),
    "mixed": Case(sequences=(*LONG_ROWS, (90, 300)), kv=torch.bfloat16, io=torch.bfloat16, group=7),
}
SEQUENCES = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
PIECES = (2, 64, 97, 37)


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@EACH_SET
@SEQUENCES
def test_number_of_threads(case: Case, instruction_set: str) -> None:
    storage = Storage(case, instruction_set)
    expected = [storage.attend(layer) for layer in range(case.layers)]
    for threads in (2, 3, 8):
        storage.use(_native.ThreadPool(threads, [], 20))
        storage.prepare()
        for layer in [*range(case.layers)] * 3:
            assert same(storage.attend(layer), expected[layer]), f"{threads} threads, layer {layer}"


@EACH_SET
@SEQUENCES
@pytest.mark.parametrize("threads", [1, 8])
def test_rest_of_the_batch(threads: int, case: Case, instruction_set: str) -> None:
    storage = Storage(case, instruction_set, threads)
    together = storage.attend()
    row = 0
    for index, sequence in enumerate(case.sequences):
        rows = slice(row, row := row + sequence[0])
        storage.prepare([sequence], [index])
        assert same(storage.attend(rows=rows), together[rows])


@EACH_SET
@pytest.mark.parametrize("kv", FORMATS, ids=str)
@pytest.mark.parametrize("window", [0, 90])
def test_chunks_of_a_prefill(window: int, kv: torch.dtype, instruction_set: str) -> None:
    start, rows = 100, sum(PIECES)
    case = Case(sequences=((rows, start),), group=5, kv=kv, windows=(window,), seed=window)
    storage = Storage(case, instruction_set)
    expected = storage.attend()

    storage.pages[:] = 0xFF
    storage.prepare([(start, 0)])
    storage.append(0, storage.kv[0][0][:start])
    begin = 0
    for count in PIECES:
        storage.prepare([(count, start + begin)])
        chunk = slice(begin, begin := begin + count)
        kv_rows, queries = storage.kv[0][0][start:][chunk], storage.queries[0][chunk]
        output = torch.empty_like(queries)
        storage.plan.append_and_attend(0, kv_rows.data_ptr(), queries.data_ptr(), output.data_ptr())
        assert same(output, expected[chunk])


@EACH_SET
@pytest.mark.parametrize("kv", FORMATS, ids=str)
def test_repetition_and_place_of_pages(kv: torch.dtype, instruction_set: str) -> None:
    """Other page ids, the same contents."""
    storage = Storage(Case(sequences=((1, 900), (20, 30)), kv=kv), instruction_set)
    expected = storage.attend()
    assert same(storage.attend(), expected)
    order = np.random.default_rng(1).permutation(storage.num_pages)
    storage.pages[order] = storage.pages.copy()
    storage.page_ids = order[storage.page_ids]
    storage.prepare()
    assert same(storage.attend(), expected)


@EACH_SET
def test_all_instruction_sets_store_the_same(instruction_set: str) -> None:
    for kv in FORMATS:
        case = Case(sequences=((100, 0),), kv=kv, page_size=7, dim=80)
        assert np.array_equal(Storage(case, instruction_set).pages, Storage(case, "scalar").pages)


def test_auto_is_the_fastest_set() -> None:
    case = Case(sequences=((1, 100),))
    assert Storage(case, "auto").context.instruction_set == _native.instruction_sets()[0]

"""What ``append`` stores, against torch's conversions and the storage that torch's attention reads."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.kv_storage import KVStorage
from tests.kernels.attention_case import FORMATS, INSTRUCTION_SETS, Case, Storage

EACH_SET = pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
DIM = 64


def stored(values: Tensor, kv: torch.dtype, instruction_set: str) -> Tensor:
    """As ``kv``, after ``values`` were appended: both [tokens, DIM]."""
    case = Case(sequences=((len(values), 0),), kv_heads=1, group=1, kv=kv, io=values.dtype, windows=(0,))
    storage = Storage(case, instruction_set)
    storage.kv[0][0] = torch.stack((values, values), 1)[:, :, None]
    storage.fill()
    keys, same_values = storage.stored(0, 0)[:, 0]
    assert torch.equal(keys.nan_to_num(7), same_values.nan_to_num(7))
    return keys.to(kv) if kv != torch.int8 else keys


def as_rows(values: Tensor) -> Tensor:
    return torch.nn.functional.pad(values, (0, -len(values) % DIM)).view(-1, DIM)


def numbers_of(dtype: torch.dtype) -> Tensor:
    """All of a 16-bit format, infinities too, but NaN."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    return numbers[~numbers.isnan()]


def floats_between(dtype: torch.dtype) -> Tensor:
    """float32 numbers that round to all numbers of a 16-bit format: ties, and what is next to them."""
    numbers = numbers_of(dtype)
    numbers = numbers[numbers.isfinite()].float().sort().values
    ties = (numbers[1:].double() + numbers[:-1].double()).div(2).float()
    largest = numbers[-1]
    half_step = (largest - numbers[-2]) / 2
    beyond = torch.tensor([largest + half_step, largest.double() * 3, torch.inf, 0.0], dtype=torch.float32)
    all_ties = torch.cat((ties, beyond, -beyond))
    inf = torch.tensor(torch.inf)
    return torch.cat((numbers, all_ties, all_ties.nextafter(inf), all_ties.nextafter(-inf)))


def assert_same_bits(found: Tensor, expected: Tensor) -> None:
    assert torch.equal(found.view(torch.int16), expected.view(torch.int16))


@EACH_SET
@pytest.mark.parametrize("kv", [torch.bfloat16, torch.float16], ids=str)
def test_rounds_float32_like_torch(kv: torch.dtype, instruction_set: str) -> None:
    values = as_rows(floats_between(kv))
    assert_same_bits(stored(values, kv, instruction_set), values.to(kv))


@EACH_SET
@pytest.mark.parametrize("kv", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("io", [torch.bfloat16, torch.float16], ids=str)
def test_converts_every_16_bit_number_like_torch(
    io: torch.dtype, kv: torch.dtype, instruction_set: str
) -> None:
    values = as_rows(numbers_of(io))
    assert_same_bits(stored(values, kv, instruction_set), values.to(kv))


@EACH_SET
@pytest.mark.parametrize("io", [torch.bfloat16, torch.float16], ids=str)
def test_widens_every_16_bit_number(io: torch.dtype, instruction_set: str) -> None:
    values = as_rows(numbers_of(io))
    assert torch.equal(stored(values, torch.float32, instruction_set), values.float())


@EACH_SET
@pytest.mark.parametrize("kv", FORMATS[:3], ids=str)
def test_not_a_number_stays_one(kv: torch.dtype, instruction_set: str) -> None:
    bits = np.array([0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFC00000, 0xFF800001] * 13, dtype=np.uint32)[:DIM]
    values = torch.from_numpy(bits.view(np.float32))[None]
    assert stored(values, kv, instruction_set).isnan().all()


@EACH_SET
@pytest.mark.parametrize("io", FORMATS[:3], ids=str)
def test_int8_is_off_by_half_a_step_at_most(io: torch.dtype, instruction_set: str) -> None:
    generator = torch.Generator().manual_seed(1)
    magnitudes = torch.logspace(-4, 4, 200)[:, None]
    values = (torch.randn(200, DIM, generator=generator) * magnitudes).to(io)
    step = values.double().abs().amax(-1, keepdim=True) / 127
    error = (stored(values, torch.int8, instruction_set) - values.double()).abs()
    assert (error <= step * (0.5 + 1e-4)).all()


@EACH_SET
def test_int8_rows_too_small_to_divide_by_are_zero(instruction_set: str) -> None:
    values = torch.zeros(2, DIM)
    values[0, :2] = torch.tensor([1e-38, 5e-39])
    assert not stored(values, torch.int8, instruction_set).any()


@EACH_SET
@pytest.mark.parametrize("kv", FORMATS, ids=str)
def test_zero_rows(kv: torch.dtype, instruction_set: str) -> None:
    assert not stored(torch.zeros(3, DIM), kv, instruction_set).any()


@EACH_SET
@pytest.mark.parametrize("kv", FORMATS, ids=str)
@pytest.mark.parametrize("io", FORMATS[:3], ids=str)
@pytest.mark.parametrize(("page_size", "dim"), [(16, 64), (7, 80)])
def test_pages_equal_torchs(
    page_size: int, dim: int, io: torch.dtype, kv: torch.dtype, instruction_set: str
) -> None:
    case = Case(sequences=((90, 0), (1, 20)), kv=kv, io=io, page_size=page_size, dim=dim)
    storage = Storage(case, instruction_set)
    shape = SimpleNamespace(num_layers=case.layers, num_kv_heads=case.kv_heads, head_dim=dim)
    reference = KVStorage(shape, storage.num_pages, page_size, kv)
    reference.blocks.view(torch.uint8).fill_(0xFF)
    for index, (rows, start) in enumerate(case.sequences):
        table = storage.page_ids[storage.page_starts[index] :]
        positions = np.arange(rows + start)
        slots = reference.token_slots(table[positions // page_size], positions % page_size)
        for layer in range(case.layers):
            reference.append(layer, slots, storage.kv[layer][index])
    found, expected = torch.from_numpy(storage.pages).flatten(0, -2), reference.blocks.view(torch.uint8)
    size = page_size * dim * kv.itemsize
    assert torch.equal(found[:, size:], expected[:, size:])
    found, expected = found[:, :size].view(kv), expected[:, :size].view(kv)
    if kv != torch.int8:
        found, expected = found.nan_to_num(7), expected.nan_to_num(7)
    assert torch.equal(found, expected)


@EACH_SET
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_store_the_same(threads: int, instruction_set: str) -> None:
    case = Case(sequences=((300, 0), (1, 3), (33, 10)), kv=torch.int8)
    alone = Storage(case, instruction_set)
    assert np.array_equal(Storage(case, instruction_set, threads).pages, alone.pages)


@EACH_SET
def test_only_its_own_places_are_written(instruction_set: str) -> None:
    storage = Storage(Case(sequences=((3, 37),), page_size=8, windows=(0,)), instruction_set)
    before = storage.pages.copy()
    storage.append(0, -storage.kv[0][0][37:])
    changed = (storage.pages != before).any(-1)
    assert changed.sum() == 2 * storage.case.kv_heads  # blocks of one page
    block = slice(5 * 4 * storage.case.dim, 8 * 4 * storage.case.dim)
    storage.pages[changed, block] = before[changed, block]
    assert np.array_equal(storage.pages, before)

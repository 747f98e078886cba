"""An iteration's rows, laid out once for all layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scheduler.plan import IterationPlan, ScheduledSequence

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """Sequences that compute one token each: the batch's first rows, in falling order of pages."""

    lengths: Indices
    """[n]: tokens each row attends to, its own included."""
    page_ids: Indices
    """Page tables one after another."""
    page_starts: Indices
    """[n + 1]: where each row's page table begins in ``page_ids``, and its length."""

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True, slots=True)
class PrefillSegment:
    """Consecutive tokens of one sequence in consecutive rows."""

    first_row: int
    num_rows: int
    start: int
    """Position of the first token; positions before it are in the pages already."""
    page_ids: Indices
    """Covers positions 0 .. start + num_rows - 1."""

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.start + self.num_rows


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows in the order decodes, then prefill segments."""

    token_ids: Tensor
    """int64, [rows]."""
    positions: Tensor
    """int64, [rows]."""
    slot_pages: Indices
    """[rows]: page that takes the row's keys and values ..."""
    slot_offsets: Indices
    """... and the token's place in it."""
    decodes: DecodeRows
    prefills: tuple[PrefillSegment, ...]
    fresh_pages: Tensor
    """int64: pages this iteration begins but does not fill."""
    sample_rows: Tensor
    """int64: rows whose logits are sampled from, in the plan's order."""


def make_batch(plan: IterationPlan, page_size: int) -> Batch:
    """Lay out a plan's tokens.

    Raises:
        ValueError: a sequence has no tokens or too few pages for them.
    """
    for sequence in plan.sequences:
        _check(sequence, page_size)
    decodes = [sequence for sequence in plan.sequences if len(sequence.token_ids) == 1]
    decodes.sort(key=lambda sequence: sequence.start // page_size, reverse=True)
    ordered = [*decodes, *(sequence for sequence in plan.sequences if len(sequence.token_ids) > 1)]

    starts = _integers(sequence.start for sequence in ordered)
    counts = _integers(len(sequence.token_ids) for sequence in ordered)
    first_rows = _offsets(counts)
    positions = np.arange(first_rows[-1]) + np.repeat(starts - first_rows[:-1], counts)

    page_counts = -(-(starts + counts) // page_size)
    page_starts = _offsets(page_counts)
    tables = [each.page_table[:count] for each, count in zip(ordered, page_counts, strict=True)]
    page_ids = _integers(chain.from_iterable(tables))

    last_rows = dict(zip((each.sequence_id for each in ordered), first_rows[1:] - 1, strict=True))
    sampled = _integers(last_rows[each.sequence_id] for each in plan.sequences if each.sample is not None)
    n = len(decodes)
    return Batch(
        token_ids=torch.from_numpy(_integers(chain.from_iterable(each.token_ids for each in ordered))),
        positions=torch.from_numpy(positions),
        slot_pages=page_ids[np.repeat(page_starts[:-1], counts) + positions // page_size],
        slot_offsets=positions % page_size,
        decodes=DecodeRows(starts[:n] + 1, page_ids[: page_starts[n]], page_starts[: n + 1]),
        prefills=tuple(
            PrefillSegment(
                int(first_rows[i]),
                int(counts[i]),
                int(starts[i]),
                page_ids[page_starts[i] : page_starts[i + 1]],
            )
            for i in range(n, len(ordered))
        ),
        fresh_pages=torch.from_numpy(_fresh_pages(starts, counts, page_ids[page_starts[1:] - 1], page_size)),
        sample_rows=torch.from_numpy(sampled),
    )


def _check(sequence: ScheduledSequence, page_size: int) -> None:
    end = sequence.start + len(sequence.token_ids)
    if not sequence.token_ids or end > len(sequence.page_table) * page_size:
        raise ValueError(
            f"sequence {sequence.sequence_id}: {len(sequence.token_ids)} tokens from position "
            f"{sequence.start} don't go into {len(sequence.page_table)} pages of {page_size}"
        )


def _integers(values: Iterable[int]) -> Indices:
    return np.fromiter(values, dtype=np.int64)


def _offsets(counts: Indices) -> Indices:
    """Where each of consecutive runs begins, and where the last one ends: [n + 1]."""
    return np.concatenate((np.zeros(1, dtype=np.int64), counts.cumsum()))


def _fresh_pages(starts: Indices, counts: Indices, last_pages: Indices, page_size: int) -> Indices:
    """The last pages that take their first token now and have room for more."""
    filled = (starts + counts) % page_size
    return last_pages[(filled > 0) & (filled <= counts)]

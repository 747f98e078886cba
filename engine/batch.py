"""An iteration's rows, laid out once for all layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scheduler.plan import ScheduledSequence

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sequences:
    """The batch's sequences in the order of their rows, decodes first."""

    rows: Indices
    """[n]: rows each has in the batch."""
    starts: Indices
    """[n]: position of the first one; positions before it are in the pages already."""
    page_starts: Indices
    """[n + 1]: where each one's page table begins in ``page_ids``, and where the last one ends."""
    page_ids: Indices
    """Page tables one after another, each as long as the sequence's tokens ask for."""


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
    sequences: Sequences
    sample_rows: Tensor
    """int64: rows whose logits are wanted, in the order the sequences were given in: of each those that score
    its prompt, then the one that is sampled from."""

    @property
    def decodes(self) -> DecodeRows:
        """The sequences of one row."""
        each = self.sequences
        n = int((each.rows == 1).sum())
        return DecodeRows(
            each.starts[:n] + 1, each.page_ids[: each.page_starts[n]], each.page_starts[: n + 1]
        )

    @property
    def prefills(self) -> tuple[PrefillSegment, ...]:
        """The sequences of several rows."""
        each, first_rows = self.sequences, _offsets(self.sequences.rows)
        return tuple(
            PrefillSegment(
                int(first_rows[i]),
                int(each.rows[i]),
                int(each.starts[i]),
                each.page_ids[each.page_starts[i] : each.page_starts[i + 1]],
            )
            for i in range(int((each.rows == 1).sum()), len(each.rows))
        )

    def slots(self, page_size: int) -> tuple[Indices, Indices]:
        """The pages that take the rows' keys and values, [rows], and the tokens' places in them, [rows]."""
        each, positions = self.sequences, self.positions.numpy()
        tables = np.repeat(each.page_starts[:-1], each.rows)
        return each.page_ids[tables + positions // page_size], positions % page_size

    def fresh_pages(self, page_size: int) -> Tensor:
        """int64: pages this iteration begins but does not fill."""
        each = self.sequences
        filled = (each.starts + each.rows) % page_size
        last_pages = each.page_ids[each.page_starts[1:] - 1]
        return torch.from_numpy(last_pages[(filled > 0) & (filled <= each.rows)])


def make_batch(sequences: Iterable[ScheduledSequence], page_size: int) -> Batch:
    """Lay out the tokens of sequences whose pages are in one tier.

    Raises:
        ValueError: a sequence has no tokens or too few pages for them.
    """
    sequences = tuple(sequences)
    for sequence in sequences:
        _check(sequence, page_size)
    decodes = [sequence for sequence in sequences if len(sequence.token_ids) == 1]
    decodes.sort(key=lambda sequence: sequence.start // page_size, reverse=True)
    ordered = [*decodes, *(sequence for sequence in sequences if len(sequence.token_ids) > 1)]

    starts = np.array([sequence.start for sequence in ordered], dtype=np.int64)
    counts = np.array([len(sequence.token_ids) for sequence in ordered], dtype=np.int64)
    first_rows = _offsets(counts)
    positions = np.arange(first_rows[-1]) + np.repeat(starts - first_rows[:-1], counts)

    page_counts = -(-(starts + counts) // page_size)
    page_starts = _offsets(page_counts)
    tables = [each.page_table[:count] for each, count in zip(ordered, page_counts.tolist(), strict=True)]
    page_ids = _integers(chain.from_iterable(tables))

    begins = dict(zip([each.sequence_id for each in ordered], first_rows[:-1].tolist(), strict=True))
    sampled = [row for each in sequences for row in _sampled(each, begins[each.sequence_id])]
    return Batch(
        token_ids=torch.from_numpy(_integers(chain.from_iterable([each.token_ids for each in ordered]))),
        positions=torch.from_numpy(positions),
        sequences=Sequences(counts, starts, page_starts, page_ids),
        sample_rows=torch.from_numpy(np.array(sampled, dtype=np.int64)),
    )


def _sampled(sequence: ScheduledSequence, begin: int) -> Iterable[int]:
    """Rows of the batch, of a sequence whose first one is ``begin``."""
    last = () if sequence.sample is None else (begin + len(sequence.token_ids) - 1,)
    score = sequence.score
    if score is None:
        return last
    return (*range(begin + score.first, begin + score.first + len(score.token_ids)), *last)


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

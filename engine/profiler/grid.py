"""The points at which times are measured. Between them the cost model interpolates (docs/profiles.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""Of a layer's dense work."""
ENTRY_ROWS = (1, 16, 64, 256)
"""Of its part before the attention."""
HEAD_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DECODE_ROWS = (1, 4, 16, 64, 256)
"""Of decode attention, on either side."""
DECODE_TOKENS = (256, 1024, 4096, 16384, 65536)
"""That these rows attend to in total, in equal parts. Each row attends to one at least."""
PREFILL_ROWS = (2, 16, 64, 256, 512, 1024, 2048, 4096)
"""Of a chunk: one row is decode."""
CONTEXTS = (0, 256, 1024, 4096, 16384)
"""Tokens before the chunk."""
QUICK_ROWS = (1, 4, 16, 64)
"""Of host attention where it is measured while the engine starts."""
QUICK_TOKENS = (64, 2048, 65536)


@dataclass(frozen=True, slots=True)
class Grid:
    """The grid of one measurement. Every axis has two points at least, and grows."""

    rows: tuple[int, ...]
    entry_rows: tuple[int, ...]
    head_rows: tuple[int, ...]
    decode_rows: tuple[int, ...]
    decode_tokens: tuple[int, ...]
    prefill_rows: tuple[int, ...]
    contexts: tuple[int, ...]

    @property
    def most_tokens(self) -> int:
        """In the pages of any of its batches, their last pages filled up."""
        return max(self.decode_tokens[-1], self.prefill_rows[-1] + self.contexts[-1])

    @property
    def most_sequences(self) -> int:
        """In any of its batches."""
        return self.decode_rows[-1]


QUICK = Grid(
    rows=(1, 16, 64, 256),
    entry_rows=(1, 16),
    head_rows=(1, 16, 64),
    decode_rows=QUICK_ROWS,
    decode_tokens=(64, 1024, 8192),
    prefill_rows=(2, 64, 256),
    contexts=(0, 1024, 4096),
)
"""Of the accelerator, where it is measured while the engine starts."""


def make_grid(max_rows: int, context_length: int, max_tokens: int) -> Grid:
    """What is measured for a model on a machine.

    Args:
        max_rows: computed in one iteration.
        context_length: of the model.
        max_tokens: whose keys and values there is memory for.
    """
    prefill_rows = up_to(PREFILL_ROWS, min(max_rows, max_tokens // 2))
    return Grid(
        rows=up_to(ROWS, max_rows),
        entry_rows=up_to(ENTRY_ROWS, max_rows),
        head_rows=up_to(HEAD_ROWS, max_rows),
        decode_rows=up_to(DECODE_ROWS, max_rows),
        decode_tokens=up_to(DECODE_TOKENS, max_tokens),
        prefill_rows=prefill_rows,
        contexts=up_to(CONTEXTS, min(context_length, max_tokens - prefill_rows[-1])),
    )


def up_to(axis: Sequence[int], limit: int) -> tuple[int, ...]:
    """The points of ``axis`` below ``limit``, and that, or the last one; the first two in any case."""
    kept = (*(point for point in axis if point < limit), min(limit, axis[-1]))
    kept = tuple(dict.fromkeys(kept)) if limit < axis[-1] else tuple(axis)
    return kept if len(kept) > 1 and kept[0] == axis[0] else tuple(axis[:2])


def shared_out(tokens: int, rows: int) -> tuple[int, ...]:
    """Tokens that each row attends to, [rows], the first ones one more where they can't be equal."""
    each, more = divmod(tokens, rows)
    return tuple(each + (row < more) for row in range(rows))

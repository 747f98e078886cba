"""A paged KV storage, a batch over it, and what attention has to give: in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.kernels import _native

INSTRUCTION_SETS = _native.instruction_sets()
FORMATS = (torch.float32, torch.bfloat16, torch.float16, torch.int8)
ROUNDING = {torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11}
"""Half a unit in the last place, relative."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sequences as (rows, start) pairs; a window for each layer."""

    sequences: tuple[tuple[int, int], ...]
    kv_heads: int = 2
    group: int = 3
    dim: int = 64
    page_size: int = 16
    kv: torch.dtype = torch.float32
    io: torch.dtype = torch.float32
    windows: tuple[int, ...] = (0, 0)
    softcap: float = 0.0
    scale: float | None = None
    seed: int = 0
    magnitude: float = 1.0

    @property
    def layers(self) -> int:
        return len(self.windows)

    @property
    def rows(self) -> int:
        return sum(rows for rows, _ in self.sequences)

    @property
    def factor(self) -> float:
        return self.dim**-0.5 if self.scale is None else self.scale


@dataclass
class Storage:
    """Pages of a case in shuffled order, filled through ``append`` like the engine does it."""

    case: Case
    instruction_set: str
    threads: int = 1
    pages: NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        case, rng = self.case, np.random.default_rng(self.case.seed)
        self.rng = rng
        ends = np.array([rows + start for rows, start in case.sequences])
        counts = -(-ends // case.page_size)
        self.page_starts = np.concatenate(([0], counts.cumsum())).astype(np.int64)
        self.num_pages = int(counts.sum()) + 3
        self.page_ids = rng.permutation(self.num_pages)[: counts.sum()].astype(np.int64)
        block = case.page_size * (case.dim * case.kv.itemsize + (4 if case.kv == torch.int8 else 0))
        # What lies in pages beyond a sequence's end must not matter. These bits are NaN in all float formats.
        self.pages = np.full((self.num_pages, case.layers, 2, case.kv_heads, block), 0xFF, dtype=np.uint8)
        self.use(_native.ThreadPool(self.threads, [], 20))
        self.kv = [[self.random(end, 2, case.kv_heads, case.dim) for end in ends] for _ in range(case.layers)]
        self.queries = [
            self.random(case.rows, case.kv_heads * case.group, case.dim) for _ in range(case.layers)
        ]
        self.fill()

    def use(self, pool: _native.ThreadPool) -> None:
        """Attend with these threads; ``prepare`` has to be called next."""
        case = self.case
        self.context = _native.AttentionContext(
            pool, self.instruction_set,
            layers=case.layers, heads=case.kv_heads * case.group, kv_heads=case.kv_heads, dim=case.dim,
            page_size=case.page_size, kv_format=FORMATS.index(case.kv), io_format=FORMATS.index(case.io),
            scale=case.factor, softcap=case.softcap, windows=list(case.windows),
            pages=self.pages.ctypes.data, num_pages=self.num_pages,
        )  # fmt: skip
        self.plan = _native.AttentionPlan(self.context)

    def random(self, *shape: int) -> Tensor:
        values = self.rng.standard_normal(shape, dtype=np.float32) * self.case.magnitude
        return torch.from_numpy(values).to(self.case.io)

    def prepare(
        self, sequences: Sequence[tuple[int, int]] | None = None, which: Sequence[int] | None = None
    ) -> None:
        """Plan all of the case, or other ``sequences`` on the page tables of ``which`` of its own."""
        sequences = self.case.sequences if sequences is None else sequences
        which = range(len(sequences)) if which is None else which
        rows, starts = (np.array(part, dtype=np.int64) for part in zip(*sequences, strict=True))
        tables = [self.page_ids[self.page_starts[i] : self.page_starts[i + 1]] for i in which]
        page_starts = np.cumsum([0, *map(len, tables)], dtype=np.int64)
        page_ids = np.concatenate(tables)
        self.plan.prepare(
            len(sequences),
            rows.ctypes.data,
            starts.ctypes.data,
            page_starts.ctypes.data,
            page_ids.ctypes.data,
        )

    def fill(self) -> None:
        """Store all keys and values, and plan the case's own rows."""
        self.prepare([(rows + start, 0) for rows, start in self.case.sequences])
        for layer in range(self.case.layers):
            self.append(layer, torch.cat(self.kv[layer]))
        self.prepare()

    def append(self, layer: int, kv: Tensor) -> None:
        kv = kv.contiguous()
        self.plan.append(layer, kv.data_ptr())

    def attend(self, layer: int = 0, rows: slice = slice(None)) -> Tensor:
        """Of what was prepared, whose queries are ``rows`` of the case's."""
        queries = self.queries[layer][rows]
        output = torch.full_like(queries, float("nan"))
        self.plan.attend(layer, queries.data_ptr(), output.data_ptr())
        return output

    def stored(self, layer: int, sequence: int) -> Tensor:
        """Keys and values as the pages hold them: [2, kv_heads, tokens, dim]."""
        case = self.case
        ids = self.page_ids[self.page_starts[sequence] : self.page_starts[sequence + 1]]
        blocks = torch.from_numpy(self.pages[ids, layer])  # pages, 2, heads, bytes
        size = case.page_size * case.dim * case.kv.itemsize
        values = blocks[..., :size].contiguous().view(case.kv).double()
        values = values.view(*blocks.shape[:3], case.page_size, case.dim)
        if case.kv == torch.int8:
            scales = blocks[..., size:].contiguous().view(torch.float32).double()
            values = values * scales[..., None]
        joined = values.permute(1, 2, 0, 3, 4).reshape(2, case.kv_heads, -1, case.dim)
        return joined[:, :, : sum(case.sequences[sequence])]

    def expected(self, layer: int) -> tuple[Tensor, Tensor]:
        """Outputs [rows, heads, dim], and how far they may be off."""
        case = self.case
        outputs, errors = [], []
        batch = self.queries[layer].double().split([rows for rows, _ in case.sequences])
        for index, ((rows, start), queries) in enumerate(zip(case.sequences, batch, strict=True)):
            keys, values = self.stored(layer, index)[:, :, None]  # kv_heads, 1, tokens, dim
            queries = queries.view(rows, case.kv_heads, case.group, case.dim).permute(1, 2, 0, 3)
            scores = queries @ keys.transpose(-1, -2) * case.factor
            if case.softcap:
                scores = case.softcap * (scores / case.softcap).tanh()
            position, token = start + torch.arange(rows)[:, None], torch.arange(start + rows)
            hidden = token > position
            if case.windows[layer]:
                hidden |= token <= position - case.windows[layer]
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            output = (weights @ values).permute(2, 0, 1, 3).reshape(rows, -1, case.dim)
            # Scores are float32 numbers, and weights are off by as much, relatively, as they are absolutely.
            largest = max(scores.abs().max().item(), case.softcap)
            lost = 2**-22 * (8 + largest) * values.abs().max()
            outputs.append(output)
            errors.append(ROUNDING[case.io] * output.abs() + lost)
        return torch.cat(outputs), torch.cat(errors)

    def check(self) -> None:
        for layer in range(self.case.layers):
            expected, error = self.expected(layer)
            assert ((self.attend(layer).double() - expected).abs() <= error).all(), f"layer {layer}"

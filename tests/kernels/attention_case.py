"""A paged KV storage, a batch over it, and what attention has to give: in float64, one query at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels import _native

FORMATS = (torch.float32, torch.bfloat16, torch.float16, torch.int8)
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Sequences as (rows, start) pairs."""

    sequences: tuple[tuple[int, int], ...]
    kv_heads: int = 2
    group: int = 3
    dim: int = 64
    page_size: int = 16
    kv: torch.dtype = torch.float32
    io: torch.dtype = torch.float32
    window: int = 0
    softcap: float = 0.0
    scale: float | None = None
    layers: int = 2
    seed: int = 0
    magnitude: float = 1.0

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
    pool: _native.ThreadPool = field(init=False)

    def __post_init__(self) -> None:
        case, rng = self.case, np.random.default_rng(self.case.seed)
        self.rng = rng
        ends = np.array([rows + start for rows, start in case.sequences])
        counts = -(-ends // case.page_size)
        self.page_starts = np.concatenate(([0], counts.cumsum())).astype(np.int64)
        num_pages = int(counts.sum()) + 3
        self.page_ids = rng.permutation(num_pages)[: counts.sum()].astype(np.int64)
        block = case.page_size * (case.dim * case.kv.itemsize + (4 if case.kv == torch.int8 else 0))
        # What lies in pages beyond a sequence's end must not matter: every bit pattern of it.
        shape = (num_pages, case.layers, 2, case.kv_heads, block)
        self.pages = rng.integers(0, 256, shape, dtype=np.uint8)
        self.pages[:] = 0xFF
        self.pool = _native.ThreadPool(self.threads, [], 20)
        self.context = _native.AttentionContext(
            self.pool, self.instruction_set,
            layers=case.layers, heads=case.kv_heads * case.group, kv_heads=case.kv_heads, dim=case.dim,
            page_size=case.page_size, kv_format=FORMATS.index(case.kv), io_format=FORMATS.index(case.io),
            scale=case.factor, softcap=case.softcap, windows=[case.window] * case.layers,
            pages=self.pages.ctypes.data, num_pages=num_pages,
        )  # fmt: skip
        self.plan = _native.AttentionPlan(self.context)
        self.kv = [[self.random(end, 2, case.kv_heads, case.dim) for end in ends] for _ in range(case.layers)]
        self.queries = [
            self.random(case.rows, case.kv_heads * case.group, case.dim) for _ in range(case.layers)
        ]
        self.fill()

    def random(self, *shape: int) -> torch.Tensor:
        return torch.from_numpy(self.rng.standard_normal(shape) * self.case.magnitude).to(self.case.io)

    def prepare(self, sequences: list[tuple[int, int]]) -> None:
        rows, starts = (np.array(part, dtype=np.int64) for part in zip(*sequences, strict=True))
        self.plan.prepare(
            len(sequences), rows.ctypes.data, starts.ctypes.data,
            self.page_starts.ctypes.data, self.page_ids.ctypes.data,
        )  # fmt: skip

    def fill(self) -> None:
        """Store all keys and values: those before the case's rows first."""
        case = self.case
        self.prepare([(rows + start, 0) for rows, start in case.sequences])
        for layer in range(case.layers):
            kv = torch.cat(self.kv[layer])
            self.plan.append(layer, kv.data_ptr())
        self.prepare(list(case.sequences))

    def attend(self, layer: int) -> torch.Tensor:
        output = torch.full_like(self.queries[layer], float("nan"))
        self.plan.attend(layer, self.queries[layer].data_ptr(), output.data_ptr())
        return output

    def stored(self, layer: int, sequence: int) -> Floats:
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
        return joined[:, :, : sum(case.sequences[sequence])].numpy()

    def expected(self, layer: int) -> Floats:
        """[rows, heads, dim]."""
        case = self.case
        queries = self.queries[layer].double().numpy()
        rows = []
        for index, (count, start) in enumerate(case.sequences):
            keys, values = self.stored(layer, index)
            for position in range(start, start + count):
                first = max(position + 1 - case.window, 0) if case.window else 0
                query = queries[len(rows)].reshape(case.kv_heads, case.group, case.dim)
                scores = np.einsum("hgd,htd->hgt", query, keys[:, first : position + 1]) * case.factor
                if case.softcap:
                    scores = case.softcap * np.tanh(scores / case.softcap)
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                weights /= weights.sum(-1, keepdims=True)
                out = np.einsum("hgt,htd->hgd", weights, values[:, first : position + 1])
                rows.append(out.reshape(-1, case.dim))
        return np.stack(rows)

"""Pages full of keys and values to attend to, each time others than before.

The planner predicts attention over sequences whose pages have not been touched since the last iteration, so
that is what is measured: batches go through the pages, and calls through the layers, in turn, and there
is far more memory than caches.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from engine.batch import Batch, make_batch
from engine.kv_storage import KVStorage, page_bytes
from engine.models.config import ModelConfig
from scheduler.plan import ScheduledSequence
from scheduler.types import SequenceId


class KVPages:
    """A storage with as many of a model's layers as there is memory for."""

    def __init__(
        self, config: ModelConfig, page_size: int, dtype: torch.dtype, *, tokens: int, sequences: int,
        memory: int,
    ) -> None:  # fmt: skip
        """Allocate and fill the pages.

        Args:
            config: of the whole model.
            page_size: tokens in a page.
            dtype: how keys and values are kept.
            tokens: in a batch at most.
            sequences: in a batch at most.
            memory: bytes, unless one layer of each kind, of the largest batch, needs more.
        """
        pages = tokens // page_size + sequences
        one_layer = page_bytes(_first_layers(config, 1), page_size, dtype)
        layers = max(memory // (pages * one_layer), _layers_of_every_kind(config))
        self.config = _first_layers(config, min(layers, config.num_layers))
        self.storage = KVStorage(self.config, pages, page_size, dtype)
        _fill(self.storage)
        order = list(range(pages))
        random.Random(0).shuffle(order)  # as they are found after a while
        self._pages = itertools.cycle(order)
        self._turns = itertools.cycle(_turns(self.config, config))

    def batch(self, sequences: Sequence[tuple[int, int]]) -> Batch:
        """Sequences of (first position, rows), over the next pages."""
        size = self.storage.page_size
        return make_batch(
            (
                ScheduledSequence(
                    sequence_id=SequenceId(number),
                    token_ids=(0,) * rows,
                    start=start,
                    page_table=tuple(itertools.islice(self._pages, -(-(start + rows) // size))),
                    sample=None,
                )
                for number, (start, rows) in enumerate(sequences)
            ),
            size,
        )

    def next_layers(self) -> tuple[tuple[int, float], ...]:
        """One layer of every kind, and the part of the model's layers that are of its kind."""
        return next(self._turns)


def bytes_of_token(config: ModelConfig, page_size: int, dtype: torch.dtype) -> int:
    """Of one layer."""
    return page_bytes(_first_layers(config, 1), page_size, dtype) // page_size


def _first_layers(config: ModelConfig, layers: int) -> ModelConfig:
    return replace(config, num_layers=layers, sliding_layers=config.sliding_layers[:layers])


def _layers_of_every_kind(config: ModelConfig) -> int:
    """How many of the first layers."""
    kinds = config.sliding_layers
    return max((kinds.index(kind) + 1 for kind in set(kinds)), default=1)


def _turns(kept: ModelConfig, whole: ModelConfig) -> list[tuple[tuple[int, float], ...]]:
    """Until each layer that is kept has had its turn."""
    kinds = whole.sliding_layers or (False,) * whole.num_layers
    here = kept.sliding_layers or (False,) * kept.num_layers
    groups = [[layer for layer, one in enumerate(here) if one is kind] for kind in sorted(set(kinds))]
    shares = [kinds.count(kind) / len(kinds) for kind in sorted(set(kinds))]
    return [
        tuple((group[turn % len(group)], share) for group, share in zip(groups, shares, strict=True))
        for turn in range(max(map(len, groups)))
    ]


def _fill(storage: KVStorage) -> None:
    """Write every page: memory that was never written is one page of zeros, which stays in the caches."""
    size = storage.page_size
    slots = storage.token_slots(np.zeros(size, dtype=np.int64), np.arange(size))
    for layer in range(storage.num_layers):
        storage.append(layer, slots, torch.randn(size, 2, storage.kv_heads, storage.dim))
    pages = storage.blocks.view(storage.num_pages, -1)
    pages[1:] = pages[0]

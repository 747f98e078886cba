"""An iteration's main batch: what the accelerator computes whole, its attention included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from engine.attention.base import AttentionBackend, AttentionPlan
from engine.batch import make_batch
from engine.devices.base import Resource
from engine.hybrid.rows import Rows
from engine.wanted_logits import wanted_of
from scheduler.plan import ScheduledSequence
from scheduler.tier import Tier
from scheduler.work import Stage, Work


class MainBatch(Rows):
    """Rows of device sequences, then of host sequences, whose pages the accelerator reaches over the bus."""

    attended: Tensor
    """[rows, heads * head_dim], of the layer attended to last."""

    def __init__(self, sequences: Sequence[ScheduledSequence], page_size: int) -> None:
        """Lay the rows out.

        Args:
            sequences: the plan's, at least one.
            page_size: tokens in a page, of both tiers.
        """
        by_tier = {tier: [each for each in sequences if each.tier is tier] for tier in Tier}
        self._batches = {tier: make_batch(each, page_size) for tier, each in by_tier.items() if each}
        batches = self._batches.values()
        super().__init__(
            torch.cat([batch.token_ids for batch in batches]),
            torch.cat([batch.positions for batch in batches]),
        )
        self._plans: list[tuple[AttentionPlan, slice]] = []
        self.wanted = wanted_of(each for tier in self._batches for each in by_tier[tier])
        """What the ``sample_rows`` are for."""
        firsts = (0, len(next(iter(batches)).token_ids))
        rows = [batch.sample_rows + first for batch, first in zip(batches, firsts, strict=False)]
        self.sample_rows = torch.cat(rows)
        self.attention_work = tuple(
            work for tier, each in by_tier.items() for work in _attention_work(each, tier)
        )
        self.pages_read: tuple[Resource, ...] = tuple(
            (each.tier, page) for each in sequences for page in each.page_table
        )
        self.pages_written: tuple[Resource, ...] = tuple(
            (each.tier, page) for each in sequences for page in each.page_table[each.start // page_size :]
        )

    def plan_attention(self, backends: Mapping[Tier, AttentionBackend]) -> None:
        """Cut the work of all layers; touches pages."""
        first = 0
        self._plans = []
        for tier, batch in self._batches.items():
            rows = slice(first, first + len(batch.token_ids))
            self._plans.append((backends[tier].plan(batch), rows))
            first = rows.stop

    def attend(self, layer: int) -> None:
        """Store the layer's keys and values, and attend."""
        outputs = []
        for plan, rows in self._plans:
            plan.append(layer, self.kv[rows])
            outputs.append(plan.attend(layer, self.q[rows]))
        self.attended = outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attention_work(sequences: Sequence[ScheduledSequence], tier: Tier) -> tuple[Work, ...]:
    """One layer's."""
    if tier is Tier.HOST:
        return tuple(Work(Stage.HOST_PREFILL, len(each.token_ids), each.start) for each in sequences)
    decoding = [each.start + 1 for each in sequences if len(each.token_ids) == 1]
    decode = (Work(Stage.DEVICE_DECODE, len(decoding), sum(decoding)),) if decoding else ()
    prefills = (
        Work(Stage.DEVICE_PREFILL, len(each.token_ids), each.start)
        for each in sequences
        if len(each.token_ids) > 1
    )
    return (*decode, *prefills)

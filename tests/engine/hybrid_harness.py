"""Drives a hybrid executor as a scheduler would that draws everything by lot, within the executor's contract.

Every sequence ends with the greedy tokens of the model alone, whatever happened to it: chunks of any size,
either tier, any wave, passes or none, preemption and migration with CPU work under way. Freed pages are
spoilt at once.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch

from engine.attention.choice import host_attention
from engine.clock import MonotonicClock
from engine.devices.base import Device
from engine.hybrid.build import HybridParts, hybrid_executor
from engine.hybrid.executor import HybridExecutor
from engine.kernels.loader import load_kernels
from engine.kv_storage import KVStorage
from engine.models.decoder import DecoderModel
from engine.sampling.native import NativeSampler
from scheduler.plan import (
    HostRow,
    IterationPlan,
    IterationResult,
    Migration,
    Overlap,
    PlanMode,
    SampleSpec,
    ScheduledSequence,
)
from scheduler.tier import Tier
from scheduler.types import SamplingParams, SequenceId
from tests.builders.paged_model import PagedModel

PAGE_SIZE = 4
OUTPUT = 9


@dataclass
class Drawn:
    """A sequence."""

    id: SequenceId
    prompt: list[int]
    expected: list[int]
    tokens: list[int]
    computed: int = 0
    tier: Tier = Tier.HOST
    pages: list[int] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    listed: bool = False
    """A host row of the last plan."""
    leaving: str = ""
    """``preempt`` or ``migrate``: what becomes of it once it was dropped."""
    migrating: bool = False

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def remaining(self) -> int:
        return len(self.tokens) - self.computed


def greedy_alone(model: DecoderModel, prompt: list[int], output: int) -> list[int]:
    """The tokens after ``prompt``, computed without tiers."""
    paged = PagedModel(model, num_pages=64, kernels="torch", threads=1)
    tokens: list[int] = []
    following = prompt
    for _ in range(output):
        following = [int(paged.last_logits({0: following})[0].argmax())]
        tokens += following
    return tokens


def make_executor(
    model: DecoderModel, device: Device, device_pages: int, host_pages: int, native: bool = False
) -> tuple[HybridExecutor, dict[Tier, KVStorage]]:
    """With pages that hold no numbers yet."""
    kernels = load_kernels("auto", 1) if native else None
    for_sampling = load_kernels("auto", 1) if native else None
    counts = {Tier.DEVICE: device_pages, Tier.HOST: host_pages}
    tiers = {tier: KVStorage(model.config, count, PAGE_SIZE, model.dtype) for tier, count in counts.items()}
    for storage in tiers.values():
        storage.blocks.fill_(torch.nan)
    parts = HybridParts(
        model=model,
        device=device,
        tiers=tiers,
        attention={
            tier: host_attention(
                model.config, storage, model.dtype, load_kernels("auto", 1) if native else None
            )
            for tier, storage in tiers.items()
        },
        host_kernels=kernels,
        costs=None,
        clock=MonotonicClock(),
        eos_token_ids=(),
        sampler=None if for_sampling is None else NativeSampler(for_sampling),
    )
    return hybrid_executor(parts), tiers


class Harness:
    """A scheduler of lots."""

    def __init__(
        self,
        executor: HybridExecutor,
        tiers: dict[Tier, KVStorage],
        expected: dict[tuple[int, ...], list[int]],
        seed: int,
        mode: PlanMode | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.executor = executor
        self.tiers = tiers
        self.mode = mode
        self.free = {tier: list(range(storage.num_pages)) for tier, storage in tiers.items()}
        self.waiting = [
            Drawn(SequenceId(number), list(prompt), tokens, list(prompt))
            for number, (prompt, tokens) in enumerate(expected.items(), 1)
        ]
        self.live: dict[SequenceId, Drawn] = {}
        self.finished: list[Drawn] = []
        self.leavers: dict[SequenceId, Drawn] = {}
        """Finished, but the executor may still hold them."""
        self.iterations = 0
        self.counts = {"preempt": 0, "migrate": 0, "host tokens": 0, "passes": 0}

    def run(self) -> None:
        """Until every sequence has its tokens and all pages are free."""
        while self.waiting or self.live or self.leavers:
            assert self.iterations < 5000, "no progress"
            plan = self.plan()
            self.executor.submit(plan)
            self.take(plan, self.executor.collect())
        for tier, free in self.free.items():
            assert sorted(free) == list(range(self.tiers[tier].num_pages))
        for drawn in self.finished:
            assert drawn.output == drawn.expected, f"sequence {drawn.id}"

    def plan(self) -> IterationPlan:
        self.iterations += 1
        self._admit()
        sequences, rows, migrations = [], [], []
        for drawn in list(self.live.values()):
            if drawn.migrating or drawn.leaving:
                continue
            if not drawn.listed and self.random.random() < 0.05 and (migration := self._migrate(drawn)):
                migrations.append(migration)
                continue
            if drawn.listed and self.random.random() < 0.1:
                drawn.leaving, drawn.listed = self.random.choice(["preempt", "migrate"]), False
                continue
            if drawn.tier is Tier.HOST and drawn.remaining == 1:
                if self._grow(drawn, len(drawn.tokens)):
                    rows.append(self._row(drawn))
                elif drawn.listed:
                    drawn.leaving, drawn.listed = "preempt", False
            elif (count := self._chunk(drawn)) and self._grow(drawn, drawn.computed + count):
                sequences.append(self._scheduled(drawn, count))
        self.random.shuffle(sequences)
        return IterationPlan(
            self.iterations, tuple(sequences), tuple(rows), tuple(migrations), self._overlap(bool(rows))
        )

    def take(self, plan: IterationPlan, result: IterationResult) -> None:
        assert result.iteration == plan.iteration
        wanted = [each.sequence_id for each in plan.sequences if each.sample is not None]
        assert [token.sequence_id for token in result.tokens][: len(wanted)] == wanted
        for scheduled in plan.sequences:
            self.live[scheduled.sequence_id].computed += len(scheduled.token_ids)
        host_rows = {row.sequence_id for row in plan.host_rows}
        for token in result.tokens:
            assert not token.error
            drawn = self.live[token.sequence_id]
            if drawn.id in host_rows:
                drawn.computed += 1
                self.counts["host tokens"] += 1
            drawn.tokens.append(token.token_id)
            if len(drawn.output) == OUTPUT:
                self._finish(drawn)
        for sequence_id in result.dropped:
            self._dropped(sequence_id)
        for sequence_id in result.migrated:
            drawn = self.live[sequence_id]
            self._release(drawn.tier, drawn.pages)
            drawn.tier = Tier.DEVICE if drawn.tier is Tier.HOST else Tier.HOST
            drawn.pages, drawn.target, drawn.migrating = drawn.target, [], False
        assert result.timing is not None
        self.counts["passes"] += result.timing.passes

    def _overlap(self, host_rows: bool) -> Overlap:
        mode = self.mode or self.random.choice(list(PlanMode))
        passes = {
            PlanMode.ACCELERATOR_ONLY: 0,
            PlanMode.ASYNC_OVERLAP: 0,
            PlanMode.CATCH_UP: self.random.randint(1, 6),
            PlanMode.ASYMMETRIC_PIPELINE: 20,
        }
        return Overlap(mode=mode, passes=passes[mode], waves=2)

    def _admit(self) -> None:
        while self.waiting and len(self.live) < 8 and self.random.random() < 0.5:
            drawn = self.waiting[0]
            drawn.tier = self.random.choice(list(Tier))
            if not self._grow(drawn, len(drawn.tokens) + 1):
                return
            self.live[drawn.id] = self.waiting.pop(0)

    def _chunk(self, drawn: Drawn) -> int:
        if drawn.remaining == 1:
            return self.random.randint(0, 1)
        most = drawn.remaining if drawn.tier is Tier.DEVICE else max(2, drawn.remaining)
        return self.random.randint(1, most)

    def _grow(self, drawn: Drawn, tokens: int) -> bool:
        wanted = -(-tokens // PAGE_SIZE) - len(drawn.pages)
        free = self.free[drawn.tier]
        if wanted > len(free):
            if not drawn.listed:
                self._preempt(drawn)
            return False
        drawn.pages += [free.pop(self.random.randrange(len(free))) for _ in range(wanted)]
        return True

    def _preempt(self, drawn: Drawn) -> None:
        self.live.pop(drawn.id, None)
        self._release(drawn.tier, drawn.pages)
        drawn.pages, drawn.computed = [], 0
        if drawn not in self.waiting:
            self.waiting.append(drawn)
        self.counts["preempt"] += 1

    def _migrate(self, drawn: Drawn) -> Migration | None:
        target = Tier.DEVICE if drawn.tier is Tier.HOST else Tier.HOST
        count = -(-drawn.computed // PAGE_SIZE)
        if not count or count > len(self.free[target]):
            return None
        # Pages beyond what was computed hold nothing worth a copy.
        self._release(drawn.tier, drawn.pages[count:])
        drawn.pages = drawn.pages[:count]
        drawn.target = [self.free[target].pop() for _ in range(count)]
        drawn.migrating = True
        self.counts["migrate"] += 1
        return Migration(
            sequence_id=drawn.id,
            source=drawn.tier,
            source_pages=tuple(drawn.pages),
            target_pages=tuple(drawn.target),
        )

    def _row(self, drawn: Drawn) -> HostRow:
        drawn.listed = True
        room = self.random.random() < 0.7 and self._room_ahead(drawn)
        return HostRow(
            sequence_id=drawn.id,
            token_id=drawn.tokens[-1],
            position=drawn.computed,
            page_table=tuple(drawn.pages),
            wave=self.random.choice([0, 0, 1, 1, 2, None]),
            sample=self._spec(drawn),
            continues=room and len(drawn.output) + 1 < OUTPUT,
        )

    def _room_ahead(self, drawn: Drawn) -> bool:
        wanted = -(-(len(drawn.tokens) + 1) // PAGE_SIZE) - len(drawn.pages)
        return wanted <= len(self.free[drawn.tier]) and self._grow(drawn, len(drawn.tokens) + 1)

    def _scheduled(self, drawn: Drawn, count: int) -> ScheduledSequence:
        end = drawn.computed + count
        return ScheduledSequence(
            sequence_id=drawn.id,
            token_ids=tuple(drawn.tokens[drawn.computed : end]),
            start=drawn.computed,
            page_table=tuple(drawn.pages),
            sample=self._spec(drawn) if end == len(drawn.tokens) else None,
            tier=drawn.tier,
        )

    def _spec(self, drawn: Drawn) -> SampleSpec:
        return SampleSpec(
            params=SamplingParams(max_tokens=OUTPUT, temperature=0.0, seed=0),
            choice=0,
            output_length=len(drawn.output),
            prompt_length=len(drawn.prompt),
            history=None,
        )

    def _finish(self, drawn: Drawn) -> None:
        del self.live[drawn.id]
        self.finished.append(drawn)
        if drawn.listed:
            self.leavers[drawn.id] = drawn
        else:
            self._release(drawn.tier, drawn.pages)

    def _dropped(self, sequence_id: SequenceId) -> None:
        if sequence_id in self.leavers:
            drawn = self.leavers.pop(sequence_id)
            self._release(drawn.tier, drawn.pages)
            return
        drawn = self.live[sequence_id]
        what, drawn.leaving = drawn.leaving, ""
        if what == "preempt":
            self._preempt(drawn)

    def _release(self, tier: Tier, pages: list[int]) -> None:
        """Whoever still reads them gets no numbers."""
        storage = self.tiers[tier]
        storage.blocks.view(storage.num_pages, -1)[pages] = torch.nan
        self.free[tier] += pages

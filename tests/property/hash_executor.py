"""An executor whose every token depends on all tokens before it, read back through the pages.

KV pages hold (position, token). A wrongly shared, freed or unwritten page changes the next token
or fails at once; ``expected_output`` computes the same tokens from the request alone.

Host rows, drops and migrations take as many iterations as a test says, and touch their pages until the
iteration in which they are reported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from scheduler.plan import (
    HostRow,
    IterationPlan,
    IterationResult,
    Migration,
    PlanMode,
    SampledToken,
    SampleSpec,
    ScheduledSequence,
    ScoredTokens,
    WaveProgress,
)
from scheduler.tier import Tier
from scheduler.types import Request, SequenceId, TokenLogprobs

VOCABULARY = 50

Slot = tuple[Tier, int, int]
"""Tier, page, place in it."""
Delay = Callable[[str], int]
"""How many iterations more than one a "row", a "drop" or a "copy" takes."""


def at_once(_what: str) -> int:
    """No delay."""
    return 0


def next_token(tokens: list[int], choice: int, seed: int) -> int:
    """A token that depends on everything before it."""
    text = repr((tokens, choice, seed)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") % VOCABULARY


def expected_output(request: Request, choice: int, eos: int | None, context_length: int) -> list[int]:
    """The tokens of one choice, computed without pages or batches."""
    tokens = list(request.prompt_token_ids)
    while True:
        tokens.append(next_token(tokens, choice, request.sampling.seed))
        output = tokens[len(request.prompt_token_ids) :]
        stopped = tokens[-1] == eos and not request.sampling.ignore_eos
        if stopped or len(output) >= request.sampling.max_tokens or len(tokens) >= context_length:
            return output


def expected_score(tokens: list[int]) -> float:
    """Of the token after ``tokens``."""
    return -float(next_token(tokens, 0, 0))


@dataclass(slots=True)
class RowState:
    """What is kept of a host row between iterations."""

    row: HostRow
    token_id: int
    position: int
    begun: bool = False
    left: int = 0
    """Iterations until its token is sampled, or until it is dropped."""
    table: tuple[int, ...] = ()


@dataclass(slots=True)
class CopyState:
    """A migration under way."""

    migration: Migration
    content: dict[tuple[int, int], tuple[int, int]]
    """By (number of the page, place in it): what is to arrive."""
    left: int


@dataclass(slots=True)
class HashExecutor:
    """Implements scheduler.executor.Executor over a dictionary of pages."""

    page_size: int
    delay: Delay = at_once
    kv: dict[Slot, tuple[int, int]] = field(default_factory=dict)
    plans: list[IterationPlan] = field(default_factory=list)
    rows: dict[SequenceId, RowState] = field(default_factory=dict)
    leaving: dict[SequenceId, RowState] = field(default_factory=dict)
    copies: dict[SequenceId, CopyState] = field(default_factory=dict)

    def submit(self, plan: IterationPlan) -> None:
        self.plans.append(plan)

    def collect(self) -> IterationResult:
        plan = self.plans[-1]
        self._take_rows(plan.host_rows)
        for migration in plan.migrations:
            self._take_migration(migration)
        self._check_absence(plan)
        self._check_no_page_is_written_twice(plan)
        for scheduled in plan.sequences:
            for offset, token in enumerate(scheduled.token_ids):
                position = scheduled.start + offset
                self.kv[self._slot(scheduled.tier, scheduled.page_table, position)] = (position, token)
        scores = [self._score(scheduled) for scheduled in plan.sequences if scheduled.score is not None]
        tokens = [self._sample(scheduled) for scheduled in plan.sequences if scheduled.sample is not None]
        if plan.overlap.mode is not PlanMode.ACCELERATOR_ONLY:
            tokens += self._advance()
        dropped, migrated = tuple(self._drop()), tuple(self._copy())
        return IterationResult(
            plan.iteration, tuple(tokens), dropped, migrated, self._waves(), scores=tuple(scores)
        )

    def close(self) -> None:
        self.kv.clear()

    # -- host rows

    def _take_rows(self, listed: tuple[HostRow, ...]) -> None:
        names = {row.sequence_id for row in listed}
        for name in self.rows.keys() - names:
            self.leaving[name] = self.rows.pop(name)
            self.leaving[name].left = self.delay("drop")
        for row in listed:
            assert row.sequence_id not in self.leaving, "a row comes back before it was dropped"
            state = self.rows.setdefault(row.sequence_id, RowState(row, row.token_id, row.position))
            assert (state.token_id, state.position) == (row.token_id, row.position)
            assert (row.position + row.continues) // self.page_size < len(row.page_table)
            assert state.table == row.page_table[: len(state.table)], "a row's pages change"
            state.row, state.table = row, row.page_table

    def _advance(self) -> Iterator[SampledToken]:
        for state in self.rows.values():
            if not state.begun:
                if state.row.wave is None:
                    continue
                self._begin(state)
            self._touch(state)
            if state.left:
                state.left -= 1
                continue
            token = self._token(Tier.HOST, state.table, state.position + 1, state.row.sample)
            yield SampledToken(state.row.sequence_id, token)
            state.begun = False
            state.token_id = token
            state.position += 1
            if state.row.continues:
                self._begin(state)
                self._touch(state)

    def _begin(self, state: RowState) -> None:
        state.begun = True
        state.left = self.delay("row")

    def _touch(self, state: RowState) -> None:
        """As every layer does: store the token, read all before it."""
        slot = self._slot(Tier.HOST, state.table, state.position)
        self.kv[slot] = (state.position, state.token_id)
        self._read(Tier.HOST, state.table, state.position + 1)

    def _drop(self) -> Iterator[SequenceId]:
        for name, state in list(self.leaving.items()):
            if state.begun:
                self._touch(state)
            if state.left == 0:
                del self.leaving[name]
                yield name
            state.left -= 1

    def _waves(self) -> tuple[WaveProgress, ...]:
        waves = []
        for wave in sorted({state.row.wave for state in self.rows.values() if state.row.wave is not None}):
            mine = [state for state in self.rows.values() if state.row.wave == wave]
            waves.append(WaveProgress(wave, len(mine), sum(state.position + 1 for state in mine), 0, True))
        return tuple(waves)

    # -- migrations

    def _take_migration(self, migration: Migration) -> None:
        assert migration.sequence_id not in self.copies
        assert migration.sequence_id not in self.rows
        assert migration.sequence_id not in self.leaving
        assert len(migration.source_pages) == len(migration.target_pages) > 0
        content = {
            (number, place): self.kv[migration.source, page, place]
            for number, page in enumerate(migration.source_pages)
            for place in range(self.page_size)
            if (migration.source, page, place) in self.kv
        }
        self.copies[migration.sequence_id] = CopyState(migration, content, self.delay("copy"))

    def _copy(self) -> Iterator[SequenceId]:
        """Every iteration copies everything: a page freed before the end is found out on either side."""
        for name, state in list(self.copies.items()):
            migration = state.migration
            target = Tier.HOST if migration.source is Tier.DEVICE else Tier.DEVICE
            for (number, place), kept in state.content.items():
                source_slot = (migration.source, migration.source_pages[number], place)
                assert self.kv[source_slot] == kept, "pages change while they are copied"
                self.kv[target, migration.target_pages[number], place] = kept
            if state.left == 0:
                del self.copies[name]
                yield name
            state.left -= 1

    # -- pages

    def _slot(self, tier: Tier, table: tuple[int, ...], position: int) -> Slot:
        return tier, table[position // self.page_size], position % self.page_size

    def _check_absence(self, plan: IterationPlan) -> None:
        listed = [one.sequence_id for one in (*plan.sequences, *plan.host_rows)]
        assert len(listed) == len(set(listed)), "a sequence is in two places"
        assert not self.copies.keys() & set(listed), "a sequence is computed while it is copied"
        assert not self.leaving.keys() & set(listed), "a sequence is computed while it is dropped"

    def _check_no_page_is_written_twice(self, plan: IterationPlan) -> None:
        written = [
            self._slot(scheduled.tier, scheduled.page_table, scheduled.start + offset)
            for scheduled in plan.sequences
            for offset in range(len(scheduled.token_ids))
        ]
        leaving = [state for state in self.leaving.values() if state.begun]
        for state in (*self.rows.values(), *leaving):
            written.append(self._slot(Tier.HOST, state.table, state.position))
        for copy in self.copies.values():
            target = Tier.HOST if copy.migration.source is Tier.DEVICE else Tier.DEVICE
            written += [
                (target, copy.migration.target_pages[number], place) for number, place in copy.content
            ]
        assert len(written) == len(set(written)), "two sequences write one slot"

    def _sample(self, scheduled: ScheduledSequence) -> SampledToken:
        assert scheduled.sample is not None
        length = scheduled.start + len(scheduled.token_ids)
        token = self._token(scheduled.tier, scheduled.page_table, length, scheduled.sample)
        return SampledToken(scheduled.sequence_id, token)

    def _score(self, scheduled: ScheduledSequence) -> ScoredTokens:
        """In place of a log-probability, a number that depends on all tokens before, read from the pages."""
        assert scheduled.score is not None
        first = scheduled.start + scheduled.score.first + 1
        logprobs = []
        for position, token in enumerate(scheduled.score.token_ids, first):
            tokens = self._read(scheduled.tier, scheduled.page_table, position)
            logprobs.append(TokenLogprobs(token, expected_score(tokens), ()))
        return ScoredTokens(scheduled.sequence_id, tuple(logprobs))

    def _token(self, tier: Tier, table: tuple[int, ...], length: int, spec: SampleSpec) -> int:
        tokens = self._read(tier, table, length)
        assert length == spec.prompt_length + spec.output_length
        return next_token(tokens, spec.choice, spec.params.seed)

    def _read(self, tier: Tier, table: tuple[int, ...], length: int) -> list[int]:
        tokens = []
        for position in range(length):
            kept_position, token = self.kv[self._slot(tier, table, position)]
            assert kept_position == position
            tokens.append(token)
        return tokens

"""Sequences that hold pages, those that wait for some, and every way from one state to another.

What the executor may still read or write is never given back: a host row's pages wait for its drop, and both
page sets of a move for its end.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Iterator

from scheduler.limits import Limits
from scheduler.plan import Migration
from scheduler.sequence import Sequence
from scheduler.sequence_pages import Hit
from scheduler.tier import Tier
from scheduler.tiers import Tiers
from scheduler.types import SequenceId
from scheduler.waiting_queue import WaitingQueue


class After(enum.Enum):
    """What becomes of a host row once the executor has dropped it."""

    END = enum.auto()
    """Its pages are released."""
    REQUEUE = enum.auto()
    """So are they, and it waits for admission."""
    MOVE = enum.auto()
    """They are copied to the device."""
    RESUME = enum.auto()
    """It is listed again when there is a page for its next token."""


class Residents:
    """Policy-free: whoever decides calls, and every step keeps pages, queue and executor in agreement."""

    def __init__(self, limits: Limits) -> None:
        self.tiers = Tiers(limits)
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []
        """By precedence. All hold pages; some may be away."""
        self.preemptions = 0
        self.has_host_rows = limits.has_device and limits.host_decodes
        """Whether there can be any."""
        self._leaving: dict[SequenceId, tuple[Sequence, After]] = {}
        self._migrations: list[Migration] = []

    # -- who is where

    def present(self, tier: Tier) -> Iterator[Sequence]:
        """Running sequences of ``tier`` that are not away, last come first."""
        return (one for one in reversed(self.running) if one.tier is tier and not one.away)

    def count(self, tier: Tier) -> int:
        """Running sequences that are in ``tier`` or on their way to it."""
        return sum(one.tier is tier for one in self.running) + sum(
            (1 if move.target is tier else -1) for move in self.tiers.moves if not move.abandoned
        )

    def is_host_row(self, sequence: Sequence) -> bool:
        """Whether a running sequence decodes on the CPU, beside the accelerator's batch."""
        return self.has_host_rows and sequence.tier is Tier.HOST and sequence.remaining == 1

    @property
    def under_way(self) -> bool:
        """Whether drops or moves are to be reported by the executor."""
        return bool(self._leaving) or bool(self.tiers.moves)

    @property
    def requeued(self) -> int:
        """Sequences that will wait for admission when they have been dropped."""
        return sum(after is After.REQUEUE for _sequence, after in self._leaving.values())

    def awaited(self, tier: Tier) -> bool:
        """Whether any drop or move concerns ``tier``."""
        return bool(self.tiers.moves) or (tier is Tier.HOST and bool(self._leaving))

    def coming(self, tier: Tier) -> int:
        """Pages of ``tier`` that drops and moves under way will make available, at least."""
        leaving = [one for one, after in self._leaving.values() if after in (After.END, After.REQUEUE)]
        moving = [move.sequence for move in self.tiers.moves]
        holders = self.tiers[tier].pool.holders
        return sum(holders(page) == 1 for one in leaving + moving if one.tier is tier for page in one.pages)

    # -- ways

    def admit(self, sequence: Sequence, tier: Tier, hit: Hit, tokens: int) -> None:
        """From waiting to running, with pages for ``tokens`` tokens."""
        self.waiting.remove(sequence)
        bisect.insort(self.running, sequence, key=lambda sequence: sequence.precedence)
        self.tiers.admit(sequence, tier, hit, tokens)

    def preempt(self, sequence: Sequence) -> None:
        """From running to waiting: what it has computed will be computed again."""
        self.running.remove(sequence)
        self.preemptions += 1
        if sequence.listed:
            self._leave(sequence, After.REQUEUE)
        else:
            self.tiers.release(sequence)
            self.waiting.add(sequence)

    def move(self, sequence: Sequence, target: Tier, headroom: int) -> bool:
        """Begin to bring a sequence to the other tier, if ``headroom`` pages stay available there."""
        if not self.tiers.reserve(sequence, target, headroom):
            return False
        if sequence.listed:
            self._leave(sequence, After.MOVE)
        else:
            self._migrate(sequence)
        return True

    def pause(self, sequence: Sequence) -> None:
        """Leave a host row out until there is a page for it."""
        self._leave(sequence, After.RESUME)

    def end(self, sequence: Sequence) -> None:
        """From wherever it is to nowhere."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
            return
        if sequence in self.running:
            self.running.remove(sequence)
        if sequence.id in self._leaving:
            if self._leaving[sequence.id][1] is After.MOVE:
                self.tiers.cancel(sequence)
            self._leave(sequence, After.END)
        elif sequence.away:
            self.tiers.abandon(sequence)
        elif sequence.listed:
            self._leave(sequence, After.END)
        elif sequence.pages:
            self.tiers.release(sequence)

    # -- what the executor reports

    def dropped(self, sequence_id: SequenceId) -> None:
        """The executor has done with a host row that was left out."""
        sequence, after = self._leaving.pop(sequence_id)
        sequence.listed = False
        sequence.away = False
        sequence.wave = None
        if after is After.MOVE:
            self._migrate(sequence)
        elif after in (After.END, After.REQUEUE):
            self.tiers.release(sequence)
            if after is After.REQUEUE:
                self.waiting.add(sequence)

    def migrated(self, sequence_id: SequenceId) -> None:
        """A migration is done."""
        self.tiers.arrive(sequence_id).sequence.away = False

    def take_migrations(self) -> tuple[Migration, ...]:
        """Those to begin."""
        migrations = tuple(self._migrations)
        self._migrations.clear()
        return migrations

    def _leave(self, sequence: Sequence, after: After) -> None:
        sequence.away = True
        self._leaving[sequence.id] = (sequence, after)

    def _migrate(self, sequence: Sequence) -> None:
        migration = self.tiers.migration(sequence)
        sequence.away = migration is not None
        if migration is not None:
            self._migrations.append(migration)

"""Both tiers' pages, and sequences on their way from one to the other."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.limits import Limits
from scheduler.plan import Migration
from scheduler.sequence import Sequence
from scheduler.sequence_pages import Hit, SequencePages
from scheduler.tier import Tier
from scheduler.types import SequenceId


@dataclass(slots=True, eq=False)
class Move:
    """Of a sequence's pages to the other tier; those it has and those it will have are held meanwhile."""

    sequence: Sequence
    target: Tier
    pages: list[int]
    """For all its known tokens, in ``target``."""
    hit: Hit
    """Those of them that were there already."""
    abandoned: bool = False
    """Its sequence has ended."""


class Tiers:
    """Which pages a sequence has, in which tier."""

    def __init__(self, limits: Limits) -> None:
        counts = {Tier.DEVICE: limits.device_pages, Tier.HOST: limits.host_pages}
        self._pages = {
            tier: SequencePages(count, limits.page_size)
            for tier, count in counts.items()
            if count or tier is Tier.HOST
        }
        self._page_bytes = limits.page_bytes
        self._moves: dict[SequenceId, Move] = {}
        self.moved = dict.fromkeys(Tier, 0)
        """Moves that began, by where to."""
        self.moved_bytes = dict.fromkeys(Tier, 0)

    def __getitem__(self, tier: Tier) -> SequencePages:
        return self._pages[tier]

    def of(self, sequence: Sequence) -> SequencePages:
        """The tier a sequence is in."""
        return self._pages[sequence.tier]

    # -- coming and going

    def admit(self, sequence: Sequence, tier: Tier, hit: Hit, tokens: int) -> None:
        """Give a sequence without pages those for ``tokens`` tokens, which begin with ``hit``."""
        pages = self._pages[tier]
        sequence.tier = tier
        sequence.computed = len(hit.pages) * pages.page_size
        pages.settle(sequence, pages.take(tokens, hit), hit)

    def release(self, sequence: Sequence) -> None:
        """Take a sequence's pages."""
        self.of(sequence).release(sequence.pages)
        self.of(sequence).settle(sequence, [], Hit([], sequence.salt))
        sequence.computed = 0

    def forget_prefixes(self) -> None:
        """Give up the pages that are kept for their prefix only."""
        for pages in self._pages.values():
            pages.forget_prefixes()

    # -- moves

    @property
    def moves(self) -> tuple[Move, ...]:
        """Those that have pages in both tiers now."""
        return tuple(self._moves.values())

    def reserve(self, sequence: Sequence, target: Tier, headroom: int) -> bool:
        """Take pages for a move to ``target``, if that leaves ``headroom`` pages available there."""
        pages = self._pages[target]
        hit = pages.find(sequence, sequence.computed)
        if not pages.fits(len(sequence.tokens), hit, headroom):
            return False
        taken = pages.take(len(sequence.tokens), hit)
        self._moves[sequence.id] = Move(sequence, target, taken, hit)
        return True

    def migration(self, sequence: Sequence) -> Migration | None:
        """The copies of a reserved move; None if there is nothing to copy, and the move is done."""
        move = self._moves[sequence.id]
        self.moved[move.target] += 1
        copied = slice(len(move.hit.pages), self.of(sequence).pages_for(sequence.computed))
        source_pages = tuple(sequence.pages[copied])
        self.moved_bytes[move.target] += len(source_pages) * self._page_bytes
        if not source_pages:
            self.arrive(sequence.id)
            return None
        return Migration(
            sequence_id=sequence.id,
            source=sequence.tier,
            source_pages=source_pages,
            target_pages=tuple(move.pages[copied]),
        )

    def arrive(self, sequence_id: SequenceId) -> Move:
        """All copies are made: the sequence is in the other tier now; one that has ended is nowhere."""
        move = self._moves.pop(sequence_id)
        sequence = move.sequence
        self.of(sequence).release(sequence.pages)
        target = self._pages[move.target]
        sequence.tier = move.target
        target.settle(sequence, move.pages, move.hit)
        if move.abandoned:
            self.release(sequence)
        else:
            target.index_computed(sequence)
        return move

    def abandon(self, sequence: Sequence) -> None:
        """Let a move end in nothing; what is copied is copied to the end."""
        self._moves[sequence.id].abandoned = True

    def cancel(self, sequence: Sequence) -> None:
        """Undo ``reserve`` before any page is copied."""
        move = self._moves.pop(sequence.id)
        self._pages[move.target].release(move.pages)

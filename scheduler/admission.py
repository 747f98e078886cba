"""Who comes in, and to which tier; who comes back from the host to the device.

Host residents and waiting sequences are one queue for device room, by precedence: who came first has first
claim to it, and a newcomer that finds an older claim goes to the host tier instead of waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.limits import Limits
from scheduler.residents import Residents
from scheduler.sequence import Sequence
from scheduler.sequence_pages import Hit
from scheduler.tier import Tier

STAY_OUT = 16
"""Iterations before a sequence that had to leave the device may come back (it comes back to an empty one)."""
WORTH_MOVING = 8
"""Output tokens a host row must still have to get, or the copy is not worth it."""
MOVES_AT_ONCE = 4
"""To the device: those who wait for their copy don't decode, so the rest stay where they do."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a waiting sequence goes."""

    tier: Tier
    hit: Hit
    """Of that tier."""
    moves: bool = False
    """Only its cached prefix is in the host tier, and is copied to the device at once."""


class Admission:
    """Decides by room and precedence; ``Residents`` carries it out."""

    def __init__(self, limits: Limits, residents: Residents) -> None:
        self._limits = limits
        self._residents = residents
        self._tiers = residents.tiers

    # -- from the host tier to the device

    def swap_in(self, iteration: int) -> None:
        """Begin moves to the device, in order of precedence, until one that has a claim does not fit."""
        if not self._limits.has_device:
            return
        rival = self._rival()
        for sequence in tuple(self._residents.running):
            if rival is not None and rival.precedence < sequence.precedence:
                return
            if self._has_claim(sequence) and not self._move_in(sequence, iteration):
                return

    def _rival(self) -> Sequence | None:
        """The waiting sequence that has a claim to device room too."""
        if not self._limits.host_decodes or len(self._residents.running) >= self._limits.max_running:
            return None
        first = self._residents.waiting.first()
        if first is None or self._tiers[Tier.DEVICE].pages_for(len(first.tokens)) > self._limits.device_pages:
            return None
        return first

    def _has_claim(self, sequence: Sequence) -> bool:
        """Whether a running sequence is to come to the device as soon as there is room."""
        if sequence.tier is Tier.DEVICE or sequence.away:
            return False
        if not self._limits.host_decodes:
            return True
        left = sequence.tokens_left(self._limits.context_length)
        needed = self._tiers[Tier.DEVICE].pages_for(len(sequence.tokens)) + self._margin(sequence)
        return left >= WORTH_MOVING and needed <= self._limits.device_pages

    def _margin(self, sequence: Sequence) -> int:
        """Pages to grow into before anyone has to leave again."""
        return max(2, len(sequence.pages) // 8)

    def _move_in(self, sequence: Sequence, iteration: int) -> bool:
        residents = self._residents.count(Tier.DEVICE)
        if residents == 0:
            headroom = self._margin(sequence) if self._limits.host_decodes else 0
            return self._residents.move(sequence, Tier.DEVICE, headroom)
        if sequence.swapped_out is not None and iteration - sequence.swapped_out < STAY_OUT:
            return False
        under_way = sum(move.target is Tier.DEVICE for move in self._tiers.moves)
        if self._limits.host_decodes and under_way >= MOVES_AT_ONCE:
            return False
        return self._residents.move(sequence, Tier.DEVICE, residents + self._margin(sequence))

    # -- from the queue

    def admit(self) -> Sequence | None:
        """Move the first waiting sequence to the running ones, if it fits anywhere."""
        found = self.next()
        if found is None:
            return None
        sequence, place = found
        cached = len(place.hit.pages) * self._limits.page_size
        self._residents.admit(
            sequence, place.tier, place.hit, cached if place.moves else len(sequence.tokens)
        )
        if place.moves:
            self._residents.move(sequence, Tier.DEVICE, headroom=0)
        return sequence

    def next(self) -> tuple[Sequence, Place] | None:
        """Who is to be admitted next, and where to, as things stand."""
        sequence = self._residents.waiting.first()
        if sequence is None or len(self._residents.running) >= self._limits.max_running:
            return None
        place = (
            self._place(sequence) if self._limits.has_device else self._on_host(sequence, self._hit(sequence))
        )
        return None if place is None else (sequence, place)

    def _hit(self, sequence: Sequence, tier: Tier = Tier.HOST) -> Hit:
        return self._tiers[tier].find(sequence, sequence.reusable)

    def _place(self, sequence: Sequence) -> Place | None:
        device, host = self._hit(sequence, Tier.DEVICE), self._hit(sequence)
        longer_on_host = len(host.pages) > len(device.pages)
        if not self._limits.host_decodes:
            place = self._on_device(sequence, device)
            return Place(Tier.HOST, host, moves=True) if place is not None and longer_on_host else place
        if longer_on_host:
            return self._on_host(sequence, host) or self._on_device(sequence, device)
        return self._on_device(sequence, device) or self._on_host(sequence, host)

    def _on_device(self, sequence: Sequence, hit: Hit) -> Place | None:
        """A page of headroom for each resident: else its next token would evict the newcomer."""
        fits = self._tiers[Tier.DEVICE].fits(len(sequence.tokens), hit, self._residents.count(Tier.DEVICE))
        return Place(Tier.DEVICE, hit) if fits and not self._has_older_claim(sequence) else None

    def _on_host(self, sequence: Sequence, hit: Hit) -> Place | None:
        """Headroom as on the device; and what is there must be able to come here."""
        headroom = self._residents.count(Tier.HOST)
        if self._limits.host_pages > self._limits.device_pages > 0:
            headroom += self._tiers[Tier.DEVICE].pool.held
        fits = self._tiers[Tier.HOST].fits(len(sequence.tokens), hit, headroom)
        return Place(Tier.HOST, hit) if fits else None

    def _has_older_claim(self, sequence: Sequence) -> bool:
        """Whether someone in the host tier has a right to device room before ``sequence``."""
        if not self._limits.host_decodes:
            leaving = any(move.target is Tier.HOST for move in self._tiers.moves)
            return leaving or any(map(self._has_claim, self._residents.running))
        return any(
            one.precedence < sequence.precedence and self._has_claim(one) for one in self._residents.running
        )

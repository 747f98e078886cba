"""Growth: a page for every next token, and who has to go where there is none."""

from __future__ import annotations

from scheduler.cost_model import CostModel
from scheduler.limits import Limits
from scheduler.residents import Residents
from scheduler.sequence import Sequence
from scheduler.tier import Tier


class Room:
    """The last to come goes first, so the earliest of a tier always has its page, sooner or later."""

    def __init__(self, limits: Limits, residents: Residents, costs: CostModel | None) -> None:
        self._limits = limits
        self._residents = residents
        self._costs = costs

    def make(self, iteration: int) -> bool:
        """Grow running sequences to their known tokens; those still without a page must sit this one out.

        Returns:
            Whether there was a page for everyone: else nobody may be admitted.
        """
        residents = self._residents
        enough = residents.requeued == 0
        for sequence in tuple(residents.running):
            while self._is_to_grow(sequence) and not self._grow(sequence, len(sequence.tokens)):
                enough = False
                if not self._make_way(sequence, iteration):
                    break
        for sequence in residents.running:
            if sequence.listed and not sequence.away and not residents.tiers.of(sequence).covers(sequence):
                residents.pause(sequence)
        if enough and residents.has_host_rows:
            self._grow_ahead()
        return enough

    def _is_to_grow(self, sequence: Sequence) -> bool:
        return bool(sequence.pages) and not sequence.away and self._limits.decodes_in(sequence.tier)

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        return self._residents.tiers.of(sequence).grow(sequence, tokens)

    def _make_way(self, sequence: Sequence, iteration: int) -> bool:
        """Send the last to come away, who may be ``sequence`` itself, which lacks pages.

        Returns:
            Whether it is worth trying again at once; else pages are on their way.
        """
        tier = sequence.tier
        pages = self._residents.tiers[tier]
        lacking = pages.pages_for(len(sequence.tokens)) - len(sequence.pages)
        if pages.pool.available + self._residents.coming(tier) >= lacking:
            return False
        last = next(self._residents.present(tier))
        if last is sequence and self._residents.awaited(tier):
            return False
        self._evict(last, iteration)
        return True

    def _evict(self, sequence: Sequence, iteration: int) -> None:
        residents = self._residents
        if sequence.tier is Tier.DEVICE and self._copying_is_cheaper(sequence):
            # One page more than its own tokens need: else its next one would evict it again.
            headroom = residents.count(Tier.HOST) + 1 if self._limits.host_decodes else 0
            if residents.move(sequence, Tier.HOST, headroom):
                sequence.swapped_out = iteration
                return
        residents.preempt(sequence)

    def _copying_is_cheaper(self, sequence: Sequence) -> bool:
        costs, computed = self._costs, sequence.computed
        if costs is None or computed == 0:
            return computed > 0
        size = self._residents.tiers.of(sequence).pages_for(computed) * costs.page_bytes
        copying = costs.download(size)
        if not self._limits.host_decodes:
            copying += costs.upload(size)
        chunk = self._limits.max_batch_tokens
        chunks = [(min(chunk, computed - start), start) for start in range(0, computed, chunk)]
        computing = sum(costs.dense(rows) + costs.device_prefill(rows, start) for rows, start in chunks)
        return copying < costs.layers * computing

    def _grow_ahead(self) -> None:
        """A page for the token after the next, so that a host row may go on within an iteration."""
        for sequence in self._residents.running:
            goes_on = sequence.tokens_left(self._limits.context_length) > 1
            if goes_on and not sequence.away and self._residents.is_host_row(sequence):
                self._grow(sequence, len(sequence.tokens) + 1)

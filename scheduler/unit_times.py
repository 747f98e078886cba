"""How long the units of an iteration take: the main batch's, those of passes, and what riders add.

A *unit* is what the accelerator runs between two attentions: unit 0 is the entry, units 1 .. L-1 the dense
work between two layers, unit L the exit with the head. A token passes through all L + 1 of them.
"""

from __future__ import annotations

import msgspec

from scheduler.cost_model import CostModel
from scheduler.snapshot import Snapshot

Units = tuple[float, float, float]
"""Seconds of entry, one dense unit, and exit with head."""


class MainBatch(msgspec.Struct, frozen=True, gc=False):
    """What the accelerator computes in an iteration besides host rows."""

    rows: int
    sampled: int
    """Of them pass through the head."""
    attention: float
    """Seconds a layer."""


def main_batch(snapshot: Snapshot, prefill_tokens: int, costs: CostModel) -> MainBatch:
    """The batch with ``prefill_tokens`` prompt tokens, handed out in the order the prompts are served."""
    decodes = snapshot.device_rows
    attention = costs.device_decode(decodes, snapshot.device_tokens) if decodes else 0.0
    left = prefill_tokens
    ended = 0
    for prefill in snapshot.prefills:
        rows = min(left, prefill.tokens)
        if rows <= 0:
            break
        attend = costs.host_prefill if prefill.on_host else costs.device_prefill
        attention += attend(rows, prefill.context)
        ended += rows == prefill.tokens
        left -= rows
    return MainBatch(decodes + prefill_tokens - left, decodes + ended, attention)


class UnitTimes:
    """Times beside one main batch, each asked of the cost model once."""

    __slots__ = ("_added", "_costs", "_host", "_units", "launch", "layers", "main", "overhead", "own", "step")

    def __init__(self, costs: CostModel, main: MainBatch) -> None:
        self._costs = costs
        self._units: dict[tuple[int, int], Units] = {}
        self._added: dict[int, Units] = {}
        self._host: dict[tuple[int, int], tuple[float, float, float]] = {}
        self.layers = costs.layers
        self.launch = costs.launch
        self.overhead = costs.overhead
        self.main = main
        self.own = self.units(main.rows, main.sampled)
        """The main batch without riders."""
        self.step = self.own[1] + main.attention
        """From one of its dense units to the next."""

    @property
    def total(self) -> float:
        """Seconds of an iteration of the main batch alone."""
        return self.overhead + self.token(self.own) + self.layers * self.main.attention

    def token(self, units: Units) -> float:
        """Seconds of all the units of a token together."""
        return units[0] + (self.layers - 1) * units[1] + units[2]

    def mean(self, rows: int) -> float:
        """A pass of ``rows``, averaged over a token's units."""
        return self.token(self.units(rows, rows)) / (self.layers + 1)

    def units(self, rows: int, sampled: int) -> Units:
        """Units of ``rows``, of which ``sampled`` pass through the head."""
        found = self._units.get((rows, sampled))
        if found is None:
            costs = self._costs
            head = costs.head(sampled) if sampled else 0.0
            found = (
                (costs.entry(rows), costs.dense(rows), costs.exit(rows) + head) if rows else (0.0, 0.0, 0.0)
            )
            self._units[rows, sampled] = found
        return found

    def added(self, riders: int) -> Units:
        """By how much ``riders`` lengthen the main batch's units."""
        found = self._added.get(riders)
        if found is None:
            both = self.units(self.main.rows + riders, self.main.sampled + riders)
            entry, dense, leave = self.own
            found = self._added[riders] = (both[0] - entry, both[1] - dense, both[2] - leave)
        return found

    def host(self, rows: int, tokens: int) -> tuple[float, float, float]:
        """A layer's attention on the CPU: down, attention, up."""
        found = self._host.get((rows, tokens))
        if found is None:
            costs = self._costs
            found = self._host[rows, tokens] = (
                costs.download(rows * costs.row_bytes_down),
                costs.host_attention(rows, tokens),
                costs.upload(rows * costs.row_bytes_up),
            )
        return found

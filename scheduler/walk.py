"""Walks an iteration unit by unit, as the executor will run it, with predicted times.

The rules are the executor's. Before each unit of the main batch but the entry, waves whose result is there
take passes, the longest-waiting first, as far as ``passes_allowed`` goes; a wave that can ride in the unit
itself is left to ride. What is ready is looked at one launch before the accelerator is free. The CPU serves
one wave at a time, in order.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.unit_times import Units, UnitTimes

ALONE_SECONDS = 0.02
"""An iteration without a main batch ends after this time, even if no token is done."""


def passes_allowed(budget: int, unit: int, last: int) -> int:
    """Passes that may have been taken before the main batch's ``unit``, of 0 to ``last``.

    They are spread over its units: taken as soon as can be they would carry the waves away from the main
    batch, and none would ride. One may come early, for a wave that is ready a moment before its time.
    """
    return min(budget, -(-budget * unit // last) + 1) if unit else 0


class Walk:
    """Waves of host rows on their way through the layers.

    Attributes:
        now: seconds since the walk began.
        unit: which each wave takes next.
        ready: when it can, in the seconds of ``now``.
        done: units each wave has taken.
        passes: how many of all of them were passes.
        busy: seconds the CPU has been given work for.
        idle: seconds the accelerator had none within iterations without a main batch.
    """

    __slots__ = (
        *("_added", "_cpu_free", "_host", "_pass", "_rows", "_times"),
        *("busy", "done", "idle", "now", "passes", "ready", "unit"),
    )

    def __init__(
        self, times: UnitTimes, rows: Sequence[int], tokens: Sequence[int], *, averaged: bool = False
    ) -> None:
        """All waves are ready for their entry.

        Args:
            times: beside the main batch.
            rows: of each wave, at least one.
            tokens: which each wave's rows attend to, in total.
            averaged: every unit of a wave costs the mean of a token's, so that a rate doesn't depend on which
                units a short walk happens to see.
        """
        waves = len(rows)
        self._times = times
        self._rows = rows
        self._host = [times.host(*wave) for wave in zip(rows, tokens, strict=True)]
        self._pass = [self._spread(times.units(count, count), averaged) for count in rows]
        self._added: dict[int, list[float]] | None = {} if averaged else None
        self._cpu_free = 0.0
        self.now = 0.0
        self.unit = [0] * waves
        self.ready = [0.0] * waves
        self.done = [0] * waves
        self.passes = 0
        self.busy = 0.0
        self.idle = 0.0

    def stagger(self) -> None:
        """Spread the waves evenly over a token's units."""
        waves = len(self.unit)
        self.unit = [wave * (self._times.layers + 1) // waves for wave in range(waves)]

    def send(self, wave: int, taken: int, at: float) -> None:
        """``wave`` has taken a unit at that time: its attention goes to the CPU, or its token is done."""
        if taken == self._times.layers:
            self.unit[wave] = 0
            self.ready[wave] = at
            return
        down, attention, up = self._host[wave]
        arrival = at + down
        self._cpu_free = (arrival if arrival > self._cpu_free else self._cpu_free) + attention
        self.busy += attention
        self.unit[wave] = taken + 1
        self.ready[wave] = self._cpu_free + up

    def iterate(self, budget: int) -> None:
        """One iteration beside the main batch, with at most ``budget`` passes."""
        times = self._times
        last, launch, attention = times.layers, times.launch, times.main.attention
        unit, ready = self.unit, self.ready
        waves = range(len(unit))
        sampled: set[int] = set()
        at, now, taken = 0, self.now, 0
        while True:
            allowed = passes_allowed(budget, at, last)
            if taken < allowed:
                now, taken = self._catch_up(at, now, taken, allowed, sampled)
            look = now - launch if at else now
            riding = [w for w in waves if unit[w] == at and ready[w] <= look]
            if at == last:
                riding = [w for w in riding if w not in sampled]
            now += times.own[0 if at == 0 else 1 if at < last else 2]
            if riding:
                now += self._added_by(sum([self._rows[w] for w in riding]), at)
                for wave in riding:
                    self.done[wave] += 1
                    self.send(wave, at, now)
            if at == last:
                break
            now += attention
            # Where the next pass is allowed; beyond the end when all are taken.
            passing = max(taken - 1, 0) * last // budget + 1 if taken < budget else last + 1
            following = self._next_event(at + 1, now - launch, passing, sampled)
            now += (following - at - 1) * times.step
            at = following
        self.now = now + times.overhead

    def _catch_up(
        self, at: int, now: float, passes: int, allowed: int, sampled: set[int]
    ) -> tuple[float, int]:
        """Passes before unit ``at`` of the main batch; returns when it can start and how many were taken."""
        unit, ready, last = self.unit, self.ready, self._times.layers
        launch = self._times.launch
        while passes < allowed:
            chosen, since = -1, now - launch
            for wave, when in enumerate(ready):
                if when > since or unit[wave] == at or (unit[wave] == last and wave in sampled):
                    continue
                if when < since or chosen < 0:
                    chosen, since = wave, when
            if chosen < 0:
                break
            taken = unit[chosen]
            now += self._pass[chosen][taken]
            self.done[chosen] += 1
            self.passes += 1
            passes += 1
            if taken == last:
                sampled.add(chosen)
            self.send(chosen, taken, now)
        return now, passes

    def _next_event(self, at: int, look: float, passing: int, sampled: set[int]) -> int:
        """The unit from ``at`` on before or in which a wave does something; the last one if none does.

        ``look`` is when what is ready for unit ``at`` is looked at, ``passing`` the first unit before which a
        pass may be taken.
        """
        last, step = self._times.layers, self._times.step
        event = last
        for wave, when in enumerate(self.ready):
            own = self.unit[wave]
            if own == last and wave in sampled:
                continue
            first = at
            if when > look:
                first += -int((look - when) // step)
            does = first if first > passing else passing
            if first <= own < does:  # it rides before that
                does = own
            if does < event:
                event = does
        return event

    def iterate_alone(self, budget: int) -> None:
        """One iteration without a main batch: ``budget`` passes, a token or ``ALONE_SECONDS``."""
        begun = now = self.now
        last, launch = self._times.layers, self._times.launch
        while budget and now - begun < ALONE_SECONDS:
            when = min(self.ready)
            wave = self.ready.index(when)
            start = max(now, when + launch)
            self.idle += start - now
            taken = self.unit[wave]
            now = start + self._pass[wave][taken]
            self.done[wave] += 1
            self.passes += 1
            budget -= 1
            self.send(wave, taken, now)
            if taken == last:
                break
        self.now = now + self._times.overhead

    def _added_by(self, riders: int, at: int) -> float:
        times = self._times
        if self._added is None:
            return times.added(riders)[0 if at == 0 else 1 if at < times.layers else 2]
        found = self._added.get(riders)
        if found is None:
            found = self._added[riders] = self._spread(times.added(riders), True)
        return found[at]

    def _spread(self, units: Units, averaged: bool) -> list[float]:
        """Seconds of every unit of a token."""
        layers = self._times.layers
        if averaged:
            return [self._times.token(units) / (layers + 1)] * (layers + 1)
        return [units[0], *[units[1]] * (layers - 1), units[2]]

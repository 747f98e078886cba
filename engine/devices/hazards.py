"""Who may touch what when: happens-before by vector clocks.

Every actor (the host, each stream) counts what it does, and knows of every other actor how many of its
doings surely came before its next one. What was done to a resource is safe to follow if its number is
among those known. (Lamport 1978; as in ThreadSanitizer, Serebryany and Iskhodzhanov 2009.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.devices.base import Resource

Knowledge = tuple[int, ...]
"""For each actor, how many of its doings came before."""


class HazardError(Exception):
    """Two operations touch a resource, one of them writes it, and nothing says which comes first."""


class StallError(Exception):
    """The accelerator would wait for the CPU."""


class Doing(NamedTuple):
    """Something that an actor does."""

    actor: int
    number: int
    """Counted from 1."""
    name: str


def joined(one: Knowledge, other: Knowledge) -> Knowledge:
    """What is known to either."""
    return tuple(map(max, one, other))


def came_before(doing: Doing, known: Knowledge) -> bool:
    """Whether it is among what is ``known``."""
    return doing.number <= known[doing.actor]


@dataclass(slots=True)
class _History:
    """Of one resource."""

    write: Doing | None = None
    reads: dict[int, Doing] = field(default_factory=dict)
    """Since that write, each actor's last: those before it came before it."""

    def doings(self) -> tuple[Doing, ...]:
        return (*self.reads.values(),) if self.write is None else (self.write, *self.reads.values())


class Hazards:
    """What was done to every resource."""

    _FORGET_FROM = 1024

    def __init__(self) -> None:
        self._histories: dict[Resource, _History] = {}
        self._forget_at = self._FORGET_FROM

    def __len__(self) -> int:
        """Resources remembered."""
        return len(self._histories)

    def touch(
        self, doing: Doing, known: Knowledge, reads: Iterable[Resource], writes: Iterable[Resource]
    ) -> None:
        """Check and remember what ``doing`` reads and writes.

        Raises:
            HazardError: something it must come after is not among the ``known``. Nothing is remembered.
        """
        reads, writes = tuple(reads), tuple(writes)
        for resource in reads:
            if (history := self._histories.get(resource)) is not None and history.write is not None:
                _check(resource, doing, "reads", history.write, "writes", known)
        for resource in writes:
            if (history := self._histories.get(resource)) is None:
                continue
            for read in history.reads.values():
                _check(resource, doing, "writes", read, "reads", known)
            if history.write is not None:
                _check(resource, doing, "writes", history.write, "writes", known)
        for resource in reads:
            self._histories.setdefault(resource, _History()).reads[doing.actor] = doing
        for resource in writes:
            self._histories[resource] = _History(doing)

    def forget(self, known: Knowledge) -> None:
        """Let go of resources now and then, if all that was done to them is ``known`` to the host.

        Whatever is launched later comes after all that the host knows, so they are as good as new.
        """
        if len(self._histories) < self._forget_at:
            return
        self._histories = {
            resource: history
            for resource, history in self._histories.items()
            if not all(came_before(doing, known) for doing in history.doings())
        }
        self._forget_at = max(self._FORGET_FROM, 2 * len(self._histories))


def _check(resource: Resource, later: Doing, does: str, earlier: Doing, did: str, known: Knowledge) -> None:
    if not came_before(earlier, known):
        raise HazardError(
            f"{later.name} {does} {resource!r}, which {earlier.name} {did}, without having waited for it"
        )

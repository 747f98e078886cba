"""Which host row goes with which wave."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Sequence

from scheduler.plan import Overlap, PlanMode
from scheduler.snapshot import HostSequence
from scheduler.types import SequenceId

_UNEVEN = 2
"""Rows change waves only when one wave attends to more than this many times another's tokens."""


def assign_waves(
    host: Sequence[HostSequence], overlap: Overlap, first: Collection[SequenceId] = ()
) -> dict[SequenceId, int | None]:
    """The wave of every host row; None for those that don't take part.

    Rows stay in their wave while it exists, new ones go to the lightest, and if the waves are uneven as few
    rows as possible move. Where none advance at all, each keeps what it has. Where not all take part, those
    of ``first`` come before the others.
    """
    if overlap.mode is PlanMode.ACCELERATOR_ONLY:
        return {row.sequence_id: row.wave for row in host}
    rows = sorted(host, key=lambda row: row.sequence_id)
    chosen = sorted(rows, key=lambda row: row.sequence_id not in first)[: overlap.host_rows]
    waves: list[list[tuple[int, SequenceId]]] = [[] for _ in range(max(1, overlap.waves))]
    totals = [0] * len(waves)
    homeless = []
    for row in chosen:
        if row.wave is None or row.wave >= len(waves):
            homeless.append(row)
        else:
            waves[row.wave].append((row.tokens, row.sequence_id))
            totals[row.wave] += row.tokens
    for row in homeless:
        lightest = totals.index(min(totals))
        waves[lightest].append((row.tokens, row.sequence_id))
        totals[lightest] += row.tokens
    _balance(waves, totals)
    wave_of: dict[SequenceId, int | None] = {row.sequence_id: None for row in rows}
    for wave, members in enumerate(waves):
        for _, sequence_id in members:
            wave_of[sequence_id] = wave
    return wave_of


def _balance(waves: list[list[tuple[int, SequenceId]]], totals: list[int]) -> None:
    """Move rows from the heaviest wave to the lightest: each time the one that evens them out best."""
    if max(totals) <= _UNEVEN * min(totals):
        return
    for members in waves:
        members.sort()
    while max(totals) > _UNEVEN * min(totals):
        heavy, light = totals.index(max(totals)), totals.index(min(totals))
        surplus = totals[heavy] - totals[light]
        at = bisect_right(waves[heavy], surplus // 2, key=lambda row: row[0])
        moved = waves[heavy][max(0, at - 1)]
        if moved[0] >= surplus:
            return
        waves[heavy].remove(moved)
        insort(waves[light], moved)
        totals[heavy] -= moved[0]
        totals[light] += moved[0]

"""What an overlap is expected to bring: the walk's figures over a few iterations, or of the coming one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from scheduler.cost_model import CostModel
from scheduler.plan import Overlap, PlanMode
from scheduler.snapshot import HostSequence, Snapshot
from scheduler.unit_times import UnitTimes, main_batch
from scheduler.walk import Walk

_UNITS = 40
"""A rate is counted over so many units at least ..."""
_RIDES = 4
"""... or so many iterations where nothing but rides happens: each is like the one before."""
_ITERATIONS = 64
"""... and over so many iterations at most."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Of one iteration, on average."""

    seconds: float
    rate: float
    """Tokens a second that decode: device rows and host rows."""
    layers: float = 0.0
    """A host row advances; entry and exit are half a layer each."""
    passes: float = 0.0
    """Taken."""
    most_passes: int = 0
    """Taken in any one iteration: a larger budget changes nothing."""
    host_seconds: float = float("inf")
    """A host row's time per token."""
    host_busy: float = 0.0
    """Share of the time in which the CPU attends."""
    accelerator_idle: float = 0.0
    """Share of the time in which the accelerator waits for the CPU: 0 beside a main batch."""


class HostGroup(msgspec.Struct, frozen=True, gc=False):
    """Host rows that take part."""

    rows: int
    tokens: int
    """They attend to, in total."""


def host_group(host: Sequence[HostSequence], rows: int | None) -> HostGroup:
    """The first ``rows`` of them in order of arrival, or all."""
    if rows is None or rows >= len(host):
        return HostGroup(len(host), sum([row.tokens for row in host]))
    first = sorted(host, key=lambda row: row.sequence_id)[:rows]
    return HostGroup(len(first), sum([row.tokens for row in first]))


def prefill_room(snapshot: Snapshot) -> int:
    """Prompt tokens that the next batch has room for and that there are."""
    waiting = sum([prefill.tokens for prefill in snapshot.prefills])
    return max(0, min(waiting, snapshot.max_batch_tokens - snapshot.device_rows))


def predict(snapshot: Snapshot, costs: CostModel, overlap: Overlap) -> Prediction:
    """What ``overlap`` brings while the state stays about as it is."""
    chunk = prefill_room(snapshot)
    if overlap.prefill_tokens is not None:
        chunk = min(chunk, overlap.prefill_tokens)
    times = UnitTimes(costs, main_batch(snapshot, chunk, costs))
    if overlap.mode is PlanMode.ACCELERATOR_ONLY or not snapshot.host:
        return predict_alone(snapshot.device_rows, times)
    group = host_group(snapshot.host, overlap.host_rows)
    return predict_waves(snapshot.device_rows, times, group, overlap.waves, overlap.passes)


def predict_alone(decodes: int, times: UnitTimes) -> Prediction:
    """Without host rows; ``decodes`` of the main batch's rows give a token."""
    return Prediction(seconds=times.total, rate=decodes / times.total if decodes else 0.0)


def predict_waves(decodes: int, times: UnitTimes, group: HostGroup, waves: int, passes: int) -> Prediction:
    """With a group of host rows in ``waves`` waves of one size and a budget of passes.

    Walks from evenly spread waves, one iteration to let them settle and then as many as give a fair count.
    """
    waves = min(waves, group.rows)
    rows = _parts(group.rows, waves)
    walk = Walk(times, rows, [group.tokens * part // group.rows for part in rows], averaged=True)
    walk.stagger()
    iterate = walk.iterate if times.main.rows else walk.iterate_alone
    iterate(passes)
    most = before = walk.passes
    start, done, busy, idle = walk.now, walk.done[:], walk.busy, walk.idle
    enough = sum(done) + (_UNITS if times.main.rows else waves * _UNITS)
    iterations = 0
    while sum(walk.done) < enough and iterations < (_ITERATIONS if passes else _RIDES):
        taken = walk.passes
        iterate(passes)
        most = max(most, walk.passes - taken)
        iterations += 1
    span = walk.now - start
    units = sum([part * (after - first) for part, after, first in zip(rows, walk.done, done, strict=True)])
    tokens = units / (times.layers + 1)
    return Prediction(
        seconds=span / iterations,
        rate=(decodes * iterations + tokens) / span,
        layers=tokens / group.rows * times.layers / iterations,
        passes=(walk.passes - before) / iterations,
        most_passes=most,
        host_seconds=span * group.rows / tokens if tokens else float("inf"),
        host_busy=min(1.0, (walk.busy - busy) / span),
        accelerator_idle=(walk.idle - idle) / span,
    )


def _parts(rows: int, waves: int) -> list[int]:
    least, more = divmod(rows, waves)
    return [least + 1] * more + [least] * (waves - more)


def predict_next(snapshot: Snapshot, overlap: Overlap, times: UnitTimes) -> float:
    """Seconds of the coming iteration, from where the executor last saw the waves.

    Work that the CPU had then is taken to begin now.
    """
    if overlap.mode is PlanMode.ACCELERATOR_ONLY or not snapshot.host:
        return times.total
    group = host_group(snapshot.host, overlap.host_rows)
    seen = [wave for wave in sorted(snapshot.waves, key=lambda wave: wave.wave) if wave.rows]
    new = HostGroup(
        group.rows - sum([wave.rows for wave in seen]), group.tokens - sum([wave.tokens for wave in seen])
    )
    rows = [wave.rows for wave in seen]
    tokens = [wave.tokens for wave in seen]
    if new.rows > 0:
        waves = 1 if seen else min(overlap.waves, new.rows)
        rows += _parts(new.rows, waves)
        tokens += [max(0, new.tokens) // waves] * waves
    walk = Walk(times, rows, tokens)
    for index, wave in enumerate(seen):
        if wave.cursor < 0 or wave.ready:
            walk.unit[index] = wave.cursor + 1
        else:
            walk.send(index, wave.cursor, 0.0)
    (walk.iterate if times.main.rows else walk.iterate_alone)(overlap.passes)
    return walk.now

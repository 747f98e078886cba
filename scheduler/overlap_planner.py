"""Chooses how host rows are hidden behind the accelerator: numbers in, an ``Overlap`` out.

The theory is in docs/overlap-planner.md. Every candidate's time and rate are predicted; the best rate wins
among those that keep the latency limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from scheduler.candidates import Candidate, Candidates
from scheduler.cost_model import CostModel
from scheduler.plan import Overlap, PlanMode
from scheduler.prediction import predict_next, prefill_room
from scheduler.snapshot import Snapshot
from scheduler.unit_times import UnitTimes, main_batch

_AS_GOOD = 1.02
"""Rates that differ by less are taken as equal: then what ran before stays, or else the fewest waves win."""
_SMALLEST_CHUNK = 16


class PlanLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a choice has to keep."""

    tpot: float | None = None
    """Seconds per token of device rows, at most."""
    host_tpot: float | None = None
    """The same of host rows."""
    margin: float = 0.03
    """The prediction's own error: smaller gains over accelerator-only are none."""
    patience: int = 8
    """Iterations in a row in which host rows may pause."""
    mode: PlanMode | None = None
    """The only one allowed; None: any."""


class _Option(msgspec.Struct, frozen=True, gc=False):
    """A candidate with its prefill chunk."""

    candidate: Candidate
    chunk: int
    times: UnitTimes
    excess: float
    """The worst ratio of a latency to its limit; 1 where all are kept."""

    @property
    def rate(self) -> float:
        return self.candidate.prediction.rate


def choose(snapshot: Snapshot, costs: CostModel, limits: PlanLimits) -> Overlap:
    """How the host rows of ``snapshot`` advance in the coming iteration.

    Their order in the snapshot doesn't matter.
    """
    mode = limits.mode if snapshot.host else PlanMode.ACCELERATOR_ONLY
    tried: list[_Option] = []
    for chunk, times, candidates in _main_batches(snapshot, costs, limits):
        options = [
            _option(each, chunk, times, snapshot, limits) for each in _all(snapshot, candidates, limits, mode)
        ]
        tried += options
        keeping = [option for option in options if option.excess <= 1.0]
        if keeping:
            chosen, why = _best(keeping, snapshot.previous, limits)
            break
    else:
        chosen = min(tried, key=lambda option: (option.excess, -option.rate))
        why = "nothing keeps the latency limits; this comes closest: "
    if not snapshot.host:
        why = "no host rows"
    elif mode is not None:
        why = f"{mode} is asked for: {why}"
    return _overlap(snapshot, limits, chosen, why, [each for each in tried if each.chunk == chosen.chunk])


def _main_batches(
    snapshot: Snapshot, costs: CostModel, limits: PlanLimits
) -> Iterator[tuple[int, UnitTimes, Candidates]]:
    """Prompt tokens to try, the most first: fewer for the sake of limits, and none that must break them."""
    chunk = prefill_room(snapshot)
    tpot = limits.tpot if snapshot.device_rows else None
    host_tpot = limits.host_tpot if _attainable(snapshot, costs, limits) else None
    limit = min((each for each in (tpot, host_tpot) if each is not None), default=float("inf"))
    while True:
        times = UnitTimes(costs, main_batch(snapshot, chunk, costs))
        candidates = Candidates(snapshot, times)
        least = chunk // 2 < _SMALLEST_CHUNK
        keeps = times.total <= limit
        if keeps and host_tpot is not None and not least:
            keeps = candidates.fastest_host_token() <= host_tpot
        if least or keeps:
            yield chunk, times, candidates
            if least or host_tpot is None:
                return
        chunk //= 2


def _attainable(snapshot: Snapshot, costs: CostModel, limits: PlanLimits) -> bool:
    """Whether the CPU could keep the host rows' limit, however small the main batch."""
    if limits.host_tpot is None or not snapshot.host:
        return False
    tokens = sum(row.tokens for row in snapshot.host)
    return costs.layers * costs.host_attention(len(snapshot.host), tokens) <= limits.host_tpot


def _all(
    snapshot: Snapshot, candidates: Candidates, limits: PlanLimits, mode: PlanMode | None
) -> Iterable[Candidate]:
    tpot = limits.tpot if snapshot.device_rows else None
    found: list[Candidate] = []
    if mode in (None, PlanMode.ACCELERATOR_ONLY):
        found.append(candidates.accelerator_only())
    if mode is PlanMode.ACCELERATOR_ONLY:
        return found
    if mode in (None, PlanMode.ASYNC_OVERLAP):
        found += candidates.async_overlap()
    if mode in (None, PlanMode.CATCH_UP):
        found += candidates.catch_up(tpot, limits.host_tpot)
    if mode in (None, PlanMode.ASYMMETRIC_PIPELINE):
        found += candidates.asymmetric_pipeline()
    previous = snapshot.previous
    if previous is not None and mode in (None, previous.mode) and not any(_same(e, previous) for e in found):
        again = candidates.again(previous)
        found += [again] if again is not None else []
    if mode is None and snapshot.paused >= limits.patience:
        found = [each for each in found if not each.pauses]
    return found


def _option(
    candidate: Candidate, chunk: int, times: UnitTimes, snapshot: Snapshot, limits: PlanLimits
) -> _Option:
    excess = 1.0
    if limits.tpot is not None and snapshot.device_rows:
        excess = max(excess, candidate.prediction.seconds / limits.tpot)
    if limits.host_tpot is not None and snapshot.host:
        excess = max(excess, candidate.prediction.host_seconds / limits.host_tpot)
    return _Option(candidate, chunk, times, excess)


def _best(options: list[_Option], previous: Overlap | None, limits: PlanLimits) -> tuple[_Option, str]:
    """The best of those that keep the limits, and why, so far as its rate doesn't say it."""
    rate = max(option.rate for option in options)
    alone = next((each for each in options if each.candidate.mode is PlanMode.ACCELERATOR_ONLY), None)
    if alone is not None and rate <= alone.rate * (1 + limits.margin):
        return alone, "" if len(options) == 1 else "no gain beyond the prediction's own error: "
    least = max(rate / _AS_GOOD, alone.rate if alone is not None else 0.0)
    good = [option for option in options if option.rate >= least and option is not alone]
    kept = [option for option in good if previous is not None and _same(option.candidate, previous)]
    if kept and kept[0].rate < rate:
        return kept[0], f"still within {_AS_GOOD - 1:.0%} of the best: "
    return min(good, key=lambda option: (option.candidate.waves, option.candidate.pauses, -option.rate)), ""


def _same(candidate: Candidate, overlap: Overlap) -> bool:
    mine = (candidate.mode, candidate.waves, candidate.passes)
    return mine == (overlap.mode, overlap.waves, overlap.passes)


def _overlap(
    snapshot: Snapshot, limits: PlanLimits, chosen: _Option, why: str, tried: list[_Option]
) -> Overlap:
    candidate = chosen.candidate
    best: dict[PlanMode, Candidate] = {}
    for option in tried:
        other = option.candidate
        if other.mode is not candidate.mode and (
            other.mode not in best or other.prediction.rate > best[other.mode].prediction.rate
        ):
            best[other.mode] = other
    limited = limits.tpot is not None or limits.host_tpot is not None
    overlap = Overlap(
        mode=candidate.mode,
        passes=candidate.passes,
        waves=candidate.waves,
        host_rows=candidate.host_rows,
        prefill_tokens=chosen.chunk if limited and snapshot.prefills else None,
        reason=why if not snapshot.host else _reason(chosen, why, best),
        rate=chosen.rate,
        rejected=tuple((each.name, each.prediction.rate) for each in best.values()),
    )
    return msgspec.structs.replace(overlap, seconds=predict_next(snapshot, overlap, chosen.times))


def _reason(chosen: _Option, why: str, others: dict[PlanMode, Candidate]) -> str:
    """In plain English."""
    prediction = chosen.candidate.prediction
    parts = [f"{why}{chosen.candidate.name}, {prediction.rate:.0f} tokens/s"]
    alone = others.get(PlanMode.ACCELERATOR_ONLY)
    if alone is not None:
        parts.append(f" against {alone.prediction.rate:.0f} with the accelerator only")
    if prediction.layers:
        parts.append(f"; CPU {prediction.host_busy:.0%} busy")
        if prediction.host_seconds < float("inf"):
            parts.append(f", host rows {prediction.host_seconds * 1e3:.0f} ms a token")
    return "".join(parts)

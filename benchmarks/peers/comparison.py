"""Tandem beside the best of the others, load by load."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.contender import Case, Latency
from benchmarks.peers.catalogue import BFLOAT16
from benchmarks.results import Sample
from server.client.bench.report import markdown_table

_HEADS = (
    "load", "Tandem's weights", "tok/s", "best peer", "its tok/s", "ratio",
    "TTFT p99 ms: Tandem, lowest peer", "between tokens p99 ms: Tandem, lowest peer",
)  # fmt: skip

Engine = tuple[str, str]
"""Name and weights."""


def comparison(samples: Sequence[Sample], ours: str = "tandem") -> str:
    """Markdown: a row for each load and each kind of Tandem's weights.

    With bfloat16 weights Tandem is compared with what computes in bfloat16, otherwise with everything.
    """
    rows = []
    for case in dict.fromkeys(sample.case for sample in samples):
        engines = _engines(samples, case)
        for engine in [one for one in engines if one[0] == ours]:
            peers = {
                other: seen
                for other, seen in engines.items()
                if other[0] != ours and (engine[1] != BFLOAT16 or other[1] == BFLOAT16)
            }
            rows.append(_row(case, engine[1], engines[engine], peers))
    return markdown_table(_HEADS, rows)


def _engines(samples: Sequence[Sample], case: Case) -> dict[Engine, list[Sample]]:
    engines: dict[Engine, list[Sample]] = {}
    for sample in samples:
        if sample.case == case:
            engines.setdefault((sample.engine, sample.dtype), []).append(sample)
    return engines


def _row(
    case: Case, weights: str, ours: Sequence[Sample], peers: dict[Engine, list[Sample]]
) -> tuple[str, ...]:
    rate = _rate(ours)
    if not peers:
        return (case.label, weights, f"{rate:.1f}", "-", "-", "-", "-", "-")
    best = max(peers, key=lambda peer: _rate(peers[peer]))
    its_rate = _rate(peers[best])
    return (
        case.label,
        weights,
        f"{rate:.1f}",
        " ".join(best),
        f"{its_rate:.1f}",
        f"{rate / its_rate:.2f}" if its_rate else "-",
        *(_latencies(what, ours, peers) for what in ("ttft", "inter_token")),
    )


def _rate(samples: Sequence[Sample]) -> float:
    return median(sample.main_rate for sample in samples)


def _latencies(what: str, ours: Sequence[Sample], peers: dict[Engine, list[Sample]]) -> str:
    mine = _p99(what, ours)
    others = {peer: value for peer, seen in peers.items() if (value := _p99(what, seen)) is not None}
    if mine is None or not others:
        return "-"
    lowest = min(others, key=lambda peer: others[peer])
    return f"{mine * 1e3:.0f}, {others[lowest] * 1e3:.0f} ({' '.join(lowest)})"


def _p99(what: str, samples: Sequence[Sample]) -> float | None:
    seen: list[Latency] = [
        value for sample in samples if (value := getattr(sample.figures, what)) is not None
    ]
    return median(latency.p99 for latency in seen) if seen else None

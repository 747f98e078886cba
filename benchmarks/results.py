"""Samples of all rounds, and the table and ratios made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.contender import Case, Figures, Latency
from benchmarks.machine import Load

_HEADS = (
    "engine", "dtype", "load", "decode tok/s", "lowest - highest", "output tok/s", "prefill tok/s",
    "TTFT p50 / p99 ms", "between tokens p50 / p99 ms", "others' CPU", "load average",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sample:
    """One case measured once."""

    engine: str
    dtype: str
    case: Case
    round: int
    figures: Figures
    load: Load

    @property
    def main_rate(self) -> float:
        """The figure the case is about: steady decode, or prefill; tokens per second."""
        rate = self.figures.prefill if self.case.is_prefill else self.figures.decode
        return rate or 0.0

    def line(self) -> str:
        """For the log."""
        return (
            f"{self.engine} {self.dtype}, {self.case.label}: {self.main_rate:.1f} tok/s, "
            f"others' CPU {self.load.others:.0%}"
        )


def table(samples: Sequence[Sample]) -> str:
    """Markdown: a row for each engine, dtype and case, in the order of their first samples."""
    rows = [_HEADS, *(_row(group) for group in _groups(samples).values())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADS))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def ratios(samples: Sequence[Sample]) -> list[str]:
    """How decode rates grow with streams, and how engines compare case by case."""
    rates = {key: median(s.main_rate for s in group) for key, group in _groups(samples).items()}
    lines = []
    for (engine, dtype, case), rate in rates.items():
        single = rates.get((engine, dtype, Case(1, case.prompt_tokens, case.output_tokens)))
        if case.streams > 1 and single:
            lines.append(f"{engine} {dtype}: {case.streams} streams / 1 stream = {rate / single:.2f}")
        peer = rates.get(("transformers", dtype, case))
        if engine != "transformers" and peer:
            lines.append(f"{engine} / transformers, {dtype}, {case.label} = {rate / peer:.2f}")
    return lines


def _groups(samples: Sequence[Sample]) -> dict[tuple[str, str, Case], list[Sample]]:
    groups: dict[tuple[str, str, Case], list[Sample]] = {}
    for sample in sorted(samples, key=lambda s: (s.engine, s.dtype)):
        groups.setdefault((sample.engine, sample.dtype, sample.case), []).append(sample)
    return groups


def _row(group: Sequence[Sample]) -> tuple[str, ...]:
    first = group[0]
    rates = [sample.main_rate for sample in group]

    def middle(value: Callable[[Sample], float | None]) -> str:
        values = [v for sample in group if (v := value(sample)) is not None]
        return f"{median(values):.1f}" if values else "-"

    return (
        first.engine,
        first.dtype,
        first.case.label,
        middle(lambda s: s.figures.decode),
        f"{min(rates):.1f} - {max(rates):.1f}",
        middle(lambda s: s.figures.output),
        middle(lambda s: s.figures.prefill),
        _latencies([sample.figures.ttft for sample in group]),
        _latencies([sample.figures.inter_token for sample in group]),
        f"{max(sample.load.others for sample in group):.0%}",
        f"{max(sample.load.load_average for sample in group):.1f}",
    )


def _latencies(rounds: Sequence[Latency | None]) -> str:
    """Medians over the rounds, in milliseconds."""
    seen = [latency for latency in rounds if latency is not None]
    if not seen:
        return "-"
    p50, p99 = (median([getattr(latency, name) for latency in seen]) for name in ("p50", "p99"))
    return f"{p50 * 1e3:.0f} / {p99 * 1e3:.0f}"

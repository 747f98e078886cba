"""The figures as a table for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from server.client.bench.metrics import Quantiles, Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole benchmark."""

    url: str
    model: str
    endpoint: str
    prompt_tokens: int
    output_tokens: int
    temperature: float
    seed: int
    notes: tuple[str, ...]
    rows: tuple[Summary, ...]


def to_json(report: Report) -> bytes:
    """The report, indented; keys are the field names, times in seconds."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def to_text(report: Report) -> str:
    """Heading, Markdown table, failures and notes."""
    heading = (
        f"{report.model} at {report.url} ({report.endpoint}), "
        f"{report.prompt_tokens} tokens in, {report.output_tokens} out, seed {report.seed}"
    )
    table = markdown_table(list(_COLUMNS), [[cell(row) for cell in _COLUMNS.values()] for row in report.rows])
    failures = [
        f"{row.label}: {count} of {row.requests} requests failed: {error} ({row.error_details[error]})"
        for row in report.rows
        for error, count in row.errors.items()
    ]
    remarks = [*failures, *report.notes]
    return "\n".join([heading, "", table, *([""] if remarks else []), *remarks])


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns: the first to the left, figures to the right."""
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        first, *figures = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return "| " + " | ".join([first, *(text.strip().rjust(len(text)) for text in figures)]) + " |"

    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    return "\n".join([line(heads), f"|{rule}|", *map(line, rows)])


def figure(value: float | None, digits: int = 1) -> str:
    """A number for a table; a dash for what was not measured."""
    return "-" if value is None else f"{value:.{digits}f}"


def _milliseconds(pair: Quantiles | None) -> str:
    return "-" if pair is None else f"{pair.p50 * 1e3:.0f} / {pair.p99 * 1e3:.0f}"


_COLUMNS: Mapping[str, Callable[[Summary], str]] = MappingProxyType(
    {
        "load": lambda row: row.label,
        "requests": lambda row: str(row.requests),
        "failed": lambda row: str(sum(row.errors.values())),
        "tokens in": lambda row: figure(row.prompt_tokens_mean),
        "out": lambda row: figure(row.output_tokens_mean),
        "req/s": lambda row: figure(row.requests_per_second, 2),
        "output tok/s": lambda row: figure(row.output_tokens_per_second),
        "decode tok/s": lambda row: figure(row.decode_tokens_per_second),
        "prefill tok/s": lambda row: figure(row.prefill_tokens_per_second),
        "TTFT p50/p99 ms": lambda row: _milliseconds(row.ttft),
        "inter-token p50/p99 ms": lambda row: _milliseconds(row.inter_token),
        "whole p50/p99 ms": lambda row: _milliseconds(row.end_to_end),
    }
)

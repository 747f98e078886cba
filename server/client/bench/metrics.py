"""Figures of one run, computed from its request records alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from server.client.bench.records import RequestRecord

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Median and 99th percentile, in seconds."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One row of the report. Only whole answers count, except in ``errors``.

    None stands for what could not be measured: a server without usage, answers of a single token, an
    open loop (which has no "all streams").
    """

    label: str
    streams: int | None
    requests: int
    errors: dict[str, int]
    """Failed requests by kind (``503``, ``timeout``, ...), most frequent first."""
    error_details: dict[str, str]
    """What was said about the first of each kind."""
    seconds: float
    """From the first request's start to the last one's end."""
    requests_per_second: float
    prompt_tokens_mean: float | None
    cached_tokens: int
    output_tokens_mean: float | None
    output_tokens_per_second: float
    """Over the whole run, prefill included."""
    decode_tokens_per_second: float | None
    """Only while every stream was between its first and its last token."""
    prefill_tokens_per_second: float | None
    """Prompt tokens not found in the cache, over the time in which a request awaited its first token."""
    ttft: Quantiles | None
    inter_token: Quantiles | None
    """Between tokens; a gap before a frame of n tokens counts n times as 1/n of it."""
    end_to_end: Quantiles | None


def summarise(label: str, records: Sequence[RequestRecord], streams: int | None) -> Summary:
    """Figures of a run.

    Args:
        label: names the row.
        records: every request of the run, at least one.
        streams: concurrent streams of a closed loop; None for an open loop.
    """
    whole = [record for record in records if not record.error]
    seconds = max(record.finished for record in records) - min(record.started for record in records)
    output_tokens = sum(record.output_tokens for record in whole)
    prompts = [record.prompt_tokens for record in whole if record.prompt_tokens is not None]
    return Summary(
        label=label,
        streams=streams,
        requests=len(records),
        errors=dict(Counter(record.error for record in records if record.error).most_common()),
        error_details={record.error: record.detail for record in reversed(records) if record.error},
        seconds=seconds,
        requests_per_second=len(whole) / seconds if seconds else 0.0,
        prompt_tokens_mean=sum(prompts) / len(prompts) if prompts else None,
        cached_tokens=sum(record.cached_tokens for record in whole),
        output_tokens_mean=output_tokens / len(whole) if whole else None,
        output_tokens_per_second=output_tokens / seconds if seconds else 0.0,
        decode_tokens_per_second=steady_decode_rate(whole, streams) if streams else None,
        prefill_tokens_per_second=prefill_rate(whole),
        ttft=quantiles(record.ttft for record in whole if record.ttft is not None),
        inter_token=quantiles(gap for record in whole for gap in token_gaps(record)),
        end_to_end=quantiles(record.finished - record.started for record in whole),
    )


def steady_decode_rate(records: Sequence[RequestRecord], streams: int) -> float | None:
    """Tokens per second while ``streams`` answers were between their first and last token at once."""
    spans = [(r.frames[0].time, r.last_token) for r in records if len(r.frames) > 1]
    windows = overlaps(spans, streams)
    seconds = sum(end - start for start, end in windows)
    if not seconds:
        return None
    frames = (frame for record in records for frame in record.frames)
    return sum(f.tokens for f in frames if any(start < f.time <= end for start, end in windows)) / seconds


def prefill_rate(records: Sequence[RequestRecord]) -> float | None:
    """Computed prompt tokens over the time in which at least one of them was awaited.

    Streams that decode meanwhile take their share of the machine, so beyond one stream this is a
    lower bound.
    """
    awaited = [(r, r.frames[0].time) for r in records if r.prompt_tokens is not None and r.frames]
    seconds = sum(end - start for start, end in overlaps([(r.started, first) for r, first in awaited], 1))
    tokens = sum((r.prompt_tokens or 0) - r.cached_tokens for r, _ in awaited)
    return tokens / seconds if seconds else None


def overlaps(spans: Iterable[Interval], depth: int) -> list[Interval]:
    """The intervals covered by at least ``depth`` of the spans, in order, none empty."""
    edges = [edge for start, end in spans for edge in ((start, 1), (end, -1))]
    covering, since = 0, 0.0
    found = []
    for time, step in sorted(edges):
        if step > 0 and covering == depth - 1:
            since = time
        elif step < 0 and covering == depth and time > since:
            found.append((since, time))
        covering += step
    return found


def token_gaps(record: RequestRecord) -> list[float]:
    """Seconds before each token after the first frame."""
    return [
        (after.time - before.time) / after.tokens
        for before, after in pairwise(record.frames)
        for _ in range(after.tokens)
    ]


def quantiles(values: Iterable[float]) -> Quantiles | None:
    """Median and 99th percentile, None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Quantiles(p50=percentile(ordered, 0.5), p99=percentile(ordered, 0.99))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the neighbours, as numpy's default does."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)

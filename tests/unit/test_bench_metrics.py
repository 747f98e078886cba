"""The bench's figures from records whose times are known."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.client.bench.metrics import (
    overlaps,
    percentile,
    prefill_rate,
    steady_decode_rate,
    summarise,
    token_gaps,
)
from server.client.bench.records import Frame, RequestRecord, frames_of, spread
from server.client.bench.report import Report, to_json, to_text


def record(started: float, times: list[float], *, tokens: int = 1, **fields) -> RequestRecord:
    return RequestRecord(
        **{
            "started": started,
            "finished": times[-1],
            "frames": tuple(Frame(time, tokens) for time in times),
            "last_token": times[-1],
            "prompt_tokens": 10,
            "output_tokens": tokens * len(times),
        }
        | fields
    )


# -- tokens of frames


@given(st.integers(0, 400), st.lists(st.integers(1, 30), min_size=1, max_size=40))
def test_spread_keeps_the_total_and_the_proportions(tokens: int, weights: list[int]) -> None:
    parts = spread(tokens, weights)
    assert sum(parts) == tokens
    assert all(part >= 0 for part in parts)
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - tokens * weight / sum(weights)) <= 1


def test_frames_have_one_token_each_when_the_counts_agree() -> None:
    assert frames_of([(1.0, 9), (2.0, 1)], 2) == (Frame(1.0, 1), Frame(2.0, 1))


def test_joined_frames_share_the_tokens_by_length() -> None:
    assert frames_of([(1.0, 4), (2.0, 12)], 4) == (Frame(1.0, 1), Frame(2.0, 3))
    assert frames_of([(1.0, 100), (2.0, 1)], 1) == (Frame(1.0, 1),)
    assert frames_of([], 3) == ()


# -- rates


def test_decode_rate_of_one_stream_leaves_out_the_first_token() -> None:
    one = record(0, [2.0, 2.5, 3.0, 3.5, 4.0])
    assert steady_decode_rate([one], 1) == pytest.approx(4 / 2)


def test_decode_rate_counts_only_the_time_when_all_streams_run() -> None:
    first = record(0, [1, 2, 3, 4, 5, 6])
    second = record(0, [3.5, 4.5, 5.5, 6.5, 7.5])
    # both decode from 3.5 to 6: tokens at 4, 5, 6 and at 4.5, 5.5
    assert steady_decode_rate([first, second], 2) == pytest.approx(5 / 2.5)
    assert steady_decode_rate([first, second], 3) is None


def test_decode_rate_of_consecutive_requests_leaves_out_their_prefills() -> None:
    records = [record(start, [start + 5, start + 6, start + 7]) for start in (0, 7, 14)]
    assert steady_decode_rate(records, 1) == pytest.approx(1.0)


def test_tokens_without_text_still_take_their_time() -> None:
    """Eight tokens of which the last four are special tokens that show no text."""
    silent = record(0, [1, 2, 3, 4], tokens=2, last_token=8.0)
    assert steady_decode_rate([silent], 1) == pytest.approx(6 / 7)


def test_prefill_rate_is_over_the_time_in_which_a_prompt_waits() -> None:
    records = [
        record(0, [2, 9], prompt_tokens=100),
        record(1, [4, 9], prompt_tokens=100, cached_tokens=40),
        record(6, [7, 9], prompt_tokens=50),
    ]
    assert prefill_rate(records) == pytest.approx((100 + 60 + 50) / (4 + 1))
    assert prefill_rate([record(0, [1, 2], prompt_tokens=None)]) is None


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted).map(tuple), max_size=8),
    st.integers(1, 4),
)
def test_overlaps_equal_counting_point_by_point(spans: list[tuple[int, int]], depth: int) -> None:
    found = overlaps(spans, depth)
    for middle in np.arange(0.5, 50):
        covered = sum(start < middle < end for start, end in spans) >= depth
        assert covered == any(start < middle < end for start, end in found)


def test_gaps_of_joined_tokens_are_divided() -> None:
    joined = RequestRecord(
        started=0, finished=9, frames=(Frame(1, 5), Frame(2, 1), Frame(5, 3)), output_tokens=9
    )
    assert token_gaps(joined) == [1, 1, 1, 1]


def test_percentiles_are_numpys() -> None:
    rng = random.Random(1)
    for size in (1, 2, 3, 10, 101):
        values = sorted(rng.random() for _ in range(size))
        for share in (0.0, 0.5, 0.99, 1.0):
            assert percentile(values, share) == pytest.approx(np.percentile(values, share * 100))


# -- the summary


def test_summary_counts_failures_and_measures_only_whole_answers() -> None:
    failed = [
        RequestRecord(started=0, finished=0.5, error="503", detail="full"),
        RequestRecord(started=0, finished=0.6, error="timeout", detail="t"),
        RequestRecord(started=1, finished=1.5, error="503", detail="fuller"),
    ]
    summary = summarise("2 streams", [record(0, [1, 2]), *failed, record(2, [3, 4, 5])], 2)
    assert summary.requests == 5
    assert summary.errors == {"503": 2, "timeout": 1}
    assert summary.error_details == {"503": "full", "timeout": "t"}
    assert summary.seconds == 5
    assert summary.requests_per_second == pytest.approx(2 / 5)
    assert summary.output_tokens_per_second == pytest.approx(5 / 5)
    assert summary.output_tokens_mean == 2.5
    assert summary.ttft is not None and summary.ttft.p50 == 1
    assert summary.end_to_end is not None and summary.end_to_end.p50 == 2.5


def test_a_run_of_failures_has_no_figures_but_is_reported() -> None:
    failed = RequestRecord(started=0, finished=0.5, error="503", detail="the queue is full")
    summary = summarise("1 stream", [failed, failed], 1)
    assert (summary.ttft, summary.decode_tokens_per_second, summary.output_tokens_mean) == (None, None, None)
    report = Report(
        url="http://h",
        model="m",
        endpoint="chat",
        prompt_tokens=1,
        output_tokens=1,
        temperature=0,
        seed=1,
        notes=("a note",),
        rows=(summary,),
    )
    text = to_text(report)
    assert "1 stream: 2 of 2 requests failed: 503 (the queue is full)" in text
    assert text.endswith("a note")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(row) for row in rows}) == 1 and len(rows) == 3
    assert b'"503": 2' in to_json(report)

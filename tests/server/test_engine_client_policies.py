"""Admission and restarts by themselves, with hand-made time."""

from __future__ import annotations

import pytest

from server.engine_client.admission import CompletionRate, bounded_retry, waiting_requests
from server.engine_client.load_timer import FIRST_GUESS, LoadTimer
from server.engine_client.restart_policy import RestartPolicy


@pytest.mark.parametrize(
    ("choices", "places", "waiting"),
    [
        ([], 4, 0),
        ([1, 1, 1, 1], 4, 0),
        ([1, 1, 1, 1, 1], 4, 1),
        ([3, 3, 1, 1], 4, 2),
        ([128, 1], 4, 1),
        ([0, 0, 4, 1], 4, 1),
    ],
)
def test_requests_without_a_place_wait(choices: list[int], places: int, waiting: int) -> None:
    assert waiting_requests(choices, places) == waiting


def test_retry_follows_the_measured_rate() -> None:
    rate = CompletionRate()
    for second in range(10):
        rate.started(float(second))
    for second in range(10, 20):
        rate.started(float(second))
        rate.ended(float(second))
    # Ten endings in 19 busy seconds.
    assert rate.seconds_for(10, 19.0) == 19.0
    assert rate.seconds_for(1, 19.0) == 2.0
    assert rate.seconds_for(1000, 19.0) == 60.0


def test_idle_time_does_not_slow_the_rate() -> None:
    rate = CompletionRate()
    for start in (0.0, 1000.0, 2000.0):
        rate.started(start)
        rate.ended(start + 2.0)
    assert rate.seconds_for(3, 5000.0) == 6.0


def test_old_endings_are_forgotten() -> None:
    rate = CompletionRate()
    rate.started(0.0)
    for _ in range(100):
        rate.started(0.0)
        rate.ended(0.0)
    assert rate.seconds_for(1, 10.0) == 1.0
    assert rate.seconds_for(1, 100.0) == 60.0, "nothing ended for longer than the window"


def test_before_the_first_ending_the_estimate_grows_with_the_wait() -> None:
    rate = CompletionRate()
    assert rate.seconds_for(5, 3.0) == 1.0
    rate.started(10.0)
    assert [rate.seconds_for(2, 10.0 + wait) for wait in (0.1, 4.0, 20.0, 500.0)] == [1.0, 8.0, 40.0, 60.0]


@pytest.mark.parametrize(
    ("seconds", "retry"), [(-3.0, 1.0), (0.0, 1.0), (1.2, 2.0), (59.5, 60.0), (1e9, 60.0)]
)
def test_retry_after_is_whole_seconds_from_1_to_60(seconds: float, retry: float) -> None:
    assert bounded_retry(seconds) == retry


def test_back_off_doubles_up_to_thirty_seconds() -> None:
    policy = RestartPolicy(limit=9)
    delays = [policy.next_delay(float(second)) for second in range(10)]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, None]


def test_restarts_older_than_ten_minutes_do_not_count() -> None:
    policy = RestartPolicy(limit=1)
    assert policy.next_delay(0.0) == 0.5
    assert policy.next_delay(599.0) is None
    assert policy.next_delay(600.0) == 0.5


def test_no_restarts_allowed() -> None:
    assert RestartPolicy(limit=0).next_delay(0.0) is None


def test_loading_time_is_guessed_then_extrapolated_then_known() -> None:
    timer = LoadTimer()
    timer.start(100.0)
    assert timer.left(101.0) == FIRST_GUESS - 1.0
    timer.progress(0.25)
    assert timer.left(110.0) == 30.0
    assert timer.finish(140.0) == 40.0
    timer.start(200.5)
    timer.progress(0.9)
    assert timer.left(200.0) == 40.5, "counted from the start that is yet to come"
    assert timer.left(230.5) == 10.0
    assert timer.whole() == 40.0

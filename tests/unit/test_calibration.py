"""Correction of a cost model: bounded, smoothed, and cheap to ask for."""

from __future__ import annotations

import pytest

from benchmarks.published_profiles import profiles
from scheduler.calibration import Calibration
from scheduler.profile_costs import ProfileCosts
from scheduler.work import Stage, Work

COSTS = ProfileCosts(profiles()["t4-llama-2-7b-fp16.json"])


def after(iterations: int, ratio: float, stage: Stage = Stage.DENSE) -> Calibration:
    calibration = Calibration()
    for _ in range(iterations):
        calibration.observe_stages({stage: 1e-3}, {stage: ratio * 1e-3})
    return calibration


@pytest.mark.parametrize("ratio", [0.1, 0.8, 1.0, 1.3, 5.0])
def test_a_lasting_error_is_corrected(ratio):
    assert after(100, ratio).factors == {Stage.DENSE: pytest.approx(ratio, rel=0.01)}


def test_one_accident_hardly_matters():
    assert after(1, 1000).factors[Stage.DENSE] == pytest.approx(2**0.1)
    assert after(1, 1e-6).factors[Stage.DENSE] == pytest.approx(2**-0.1)


def test_a_correction_is_bounded():
    assert after(1000, 1e5).factors[Stage.DENSE] == pytest.approx(20)
    assert after(1000, 1e-5).factors[Stage.DENSE] == pytest.approx(1 / 20)


def test_noise_is_smoothed():
    calibration = Calibration()
    for iteration in range(200):
        noise = 1.5 if iteration % 2 else 1 / 1.5
        calibration.observe_stages({Stage.HEAD: 1.0}, {Stage.HEAD: 3 * noise})
    assert calibration.factors[Stage.HEAD] == pytest.approx(3, rel=0.05)


def test_a_stage_without_time_teaches_nothing():
    calibration = Calibration()
    calibration.observe_stages(
        {Stage.DENSE: 1.0, Stage.HEAD: 0.0, Stage.UPLOAD: 1.0}, {Stage.DENSE: 0.0, Stage.HEAD: 1.0}
    )
    assert calibration.factors == {}


def test_entry_exit_and_dense_are_one_table():
    calibration = Calibration()
    for _ in range(100):
        calibration.observe_stages(
            {Stage.DENSE: 8.0, Stage.ENTRY: 1.0, Stage.EXIT: 1.0},
            {Stage.DENSE: 16.0, Stage.ENTRY: 4.0, Stage.EXIT: 10.0},
        )
    assert calibration.factors == {Stage.DENSE: pytest.approx(3, rel=0.01)}
    costs = calibration.corrected(COSTS)
    for method in ("dense", "entry", "exit"):
        assert getattr(costs, method)(5) == pytest.approx(3 * getattr(COSTS, method)(5), rel=0.01)


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage not in (Stage.ENTRY, Stage.EXIT)])
def test_a_factor_corrects_its_own_stage_only(stage):
    costs = after(100, 3.0, stage).corrected(COSTS)
    table = {Stage.ENTRY: Stage.DENSE, Stage.EXIT: Stage.DENSE}
    for other in Stage:
        work = Work(other, rows=5, tokens=700, bytes=10**6)
        factor = 3 if table.get(other, other) is stage else 1
        assert costs.seconds(work) == pytest.approx(factor * COSTS.seconds(work), rel=0.01)
    for name in ("layers", "page_bytes", "row_bytes_down", "row_bytes_up", "launch", "overhead"):
        assert getattr(costs, name) == getattr(COSTS, name)


def test_the_object_stays_until_something_has_moved():
    calibration = after(100, 3.0)
    first = calibration.corrected(COSTS)
    calibration.observe_stages({Stage.DENSE: 1.0}, {Stage.DENSE: 3.3})
    assert calibration.corrected(COSTS) is first
    for _ in range(5):
        calibration.observe_stages({Stage.DENSE: 1.0}, {Stage.DENSE: 3.3})
    second = calibration.corrected(COSTS)
    assert second is not first
    assert second.dense(1) > 1.02 * first.dense(1)
    assert calibration.corrected(ProfileCosts(profiles()["a10-llama-3.1-8b-bf16.json"])) is not second


def test_small_moves_add_up():
    calibration = Calibration()
    first = calibration.corrected(COSTS)
    while calibration.corrected(COSTS) is first:
        before = calibration.factors.get(Stage.DENSE, 1.0)
        calibration.observe_stages({Stage.DENSE: 1.0}, {Stage.DENSE: 1.01 * before})
    assert calibration.factors[Stage.DENSE] == pytest.approx(1.02, abs=0.002)


def test_error_is_the_median_of_the_last_iterations():
    calibration = Calibration()
    assert calibration.error is None
    calibration.observe_iteration(predicted=0.0, measured=1.0)
    assert calibration.error is None
    for predicted in (0.9, 1.1, 5.0, 1.2, 1.1):
        calibration.observe_iteration(predicted, measured=1.0)
    assert calibration.error == pytest.approx(0.1)
    for _ in range(64):
        calibration.observe_iteration(predicted=3.0, measured=4.0)
    assert calibration.error == pytest.approx(0.25)

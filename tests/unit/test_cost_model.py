"""Times from a profile."""

from __future__ import annotations

import msgspec
import pytest

from benchmarks.published_profiles import profiles
from scheduler.profile import AttentionTimes, CopyTimes
from scheduler.profile_costs import ProfileCosts
from scheduler.work import Stage, Work

T4 = profiles()["t4-llama-2-7b-fp16.json"]
ACCELERATOR = T4.accelerator
assert ACCELERATOR is not None


def with_accelerator(**changes) -> ProfileCosts:
    return ProfileCosts(
        msgspec.structs.replace(T4, accelerator=msgspec.structs.replace(ACCELERATOR, **changes))
    )


def with_model(**changes) -> ProfileCosts:
    return ProfileCosts(msgspec.structs.replace(T4, model=msgspec.structs.replace(T4.model, **changes)))


def test_points_of_the_tables_come_back():
    costs = ProfileCosts(T4)
    for rows, seconds in zip(ACCELERATOR.dense.rows, ACCELERATOR.dense.seconds, strict=True):
        assert costs.dense(rows) == seconds
    for rows, line in zip(ACCELERATOR.prefill.rows, ACCELERATOR.prefill.seconds, strict=True):
        assert tuple(costs.device_prefill(rows, context) for context in ACCELERATOR.prefill.tokens) == line
    assert costs.extrapolated == frozenset()


def test_asking_again_gives_the_same():
    costs = ProfileCosts(T4)
    assert (
        costs.host_attention(3, 1000)
        == costs.host_attention(3, 1000)
        == ProfileCosts(T4).host_attention(3, 1000)
    )


def test_more_than_is_kept_is_computed_anew():
    costs = ProfileCosts(T4)
    first = costs.device_decode(1, 1)
    for tokens in range(2, 2**16 + 10):
        costs.device_decode(1, tokens)
    assert costs.device_decode(1, 1) == first
    assert len(costs._device_decode) < 100


def test_entry_and_exit_are_one_layer():
    costs = with_accelerator(entry_share=0.25)
    for rows in (0, 1, 40, 600):
        assert costs.entry(rows) == pytest.approx(0.25 * costs.dense(rows))
        assert costs.entry(rows) + costs.exit(rows) == pytest.approx(costs.dense(rows))


def test_nothing_takes_no_time():
    costs = ProfileCosts(T4)
    for stage in Stage:
        assert costs.seconds(Work(stage, rows=0, tokens=500, bytes=0)) == 0
        assert costs.seconds(Work(stage, rows=1, tokens=500, bytes=1)) > 0


def test_seconds_are_those_of_the_stage():
    costs = ProfileCosts(T4)
    expected = {
        Stage.DENSE: costs.dense(7),
        Stage.ENTRY: costs.entry(7),
        Stage.EXIT: costs.exit(7),
        Stage.HEAD: costs.head(7),
        Stage.DEVICE_DECODE: costs.device_decode(7, 900),
        Stage.DEVICE_PREFILL: costs.device_prefill(7, 900),
        Stage.HOST_PREFILL: costs.host_prefill(7, 900),
        Stage.HOST_ATTENTION: costs.host_attention(7, 900),
        Stage.DOWNLOAD: costs.download(10**6),
        Stage.UPLOAD: costs.upload(10**6),
    }
    assert expected.keys() == set(Stage)
    size = {Stage.DOWNLOAD: 10**6, Stage.UPLOAD: 10**6}
    for stage, seconds in expected.items():
        assert costs.seconds(Work(stage, rows=7, tokens=900, bytes=size.get(stage, 0))) == seconds


def test_bytes_follow_from_the_model():
    costs = with_model(
        layers=3, heads=8, kv_heads=2, head_dim=10, page_size=4, dtype="float32", kv_dtype="int8"
    )
    assert costs.row_bytes_up == 8 * 10 * 4
    assert costs.row_bytes_down == (8 + 2 * 2) * 10 * 4
    assert costs.page_bytes == 3 * 4 * 2 * 2 * (10 + 4)
    assert with_model(kv_dtype="bfloat16").page_bytes == 32 * 16 * 2 * 32 * 128 * 2


def test_copies_take_latency_and_their_bytes():
    costs = with_accelerator(
        download=CopyTimes(latency=1.0, bytes_per_second=10.0),
        upload=CopyTimes(latency=2.0, bytes_per_second=5.0),
    )
    assert (costs.download(20), costs.upload(20)) == (3.0, 6.0)


def test_prefill_over_host_pages_is_measured_or_follows_from_the_bus():
    table = AttentionTimes(rows=(1, 8), tokens=(0, 64), seconds=((1.0, 2.0), (3.0, 4.0)))
    assert with_accelerator(host_prefill=table).host_prefill(8, 0) == 3
    costs = with_accelerator(
        download=CopyTimes(latency=1.0, bytes_per_second=1e9),
        upload=CopyTimes(latency=2.0, bytes_per_second=2e9),
    )
    bus = 1000 * 16384 / 2e9 + 100 * 16384 / 1e9
    assert costs.host_prefill(100, 1000) == pytest.approx(costs.device_prefill(100, 1000) + bus)


def test_stages_beyond_their_table_are_named():
    costs = ProfileCosts(T4)
    costs.dense(4096)
    costs.device_decode(1, 3)
    assert costs.extrapolated == frozenset()
    costs.dense(4097)
    costs.host_attention(300, 300)
    costs.host_prefill(1, 200_000)
    assert costs.extrapolated == {Stage.DENSE, Stage.HOST_ATTENTION, Stage.DEVICE_PREFILL}
    assert costs.dense(8192) == pytest.approx(2 * costs.dense(4096), rel=0.01)

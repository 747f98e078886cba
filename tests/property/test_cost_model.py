"""Laws of a cost model from any profile, noise in its tables included."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
from hypothesis import given

from benchmarks.published_profiles import profiles
from scheduler.calibration import Calibration
from scheduler.cost_model import CostModel
from scheduler.profile import (
    AcceleratorTimes,
    AttentionTimes,
    Profile,
    RowTimes,
    decode_profile,
    encode_profile,
)
from scheduler.profile_costs import ProfileCosts
from scheduler.work import Stage, Work

BASE = profiles()["a10-llama-3.1-8b-bf16.json"]
SECONDS = st.floats(0, 10)
SIZES = st.integers(0, 2**20)


def points(smallest: int):
    return st.sets(st.integers(smallest, 2**17), min_size=2, max_size=4).map(
        lambda found: tuple(sorted(found))
    )


@st.composite
def row_tables(draw):
    rows = draw(points(1))
    return RowTimes(rows=rows, seconds=tuple(draw(SECONDS) for _ in rows))


@st.composite
def attention_tables(draw):
    rows, tokens = draw(points(1)), draw(points(0))
    seconds = tuple(tuple(draw(SECONDS) for _ in tokens) for _ in rows)
    return AttentionTimes(rows=rows, tokens=tokens, seconds=seconds)


@st.composite
def made_profiles(draw):
    accelerator = BASE.accelerator
    assert isinstance(accelerator, AcceleratorTimes)
    accelerator = msgspec.structs.replace(
        accelerator,
        dense=draw(row_tables()),
        head=draw(row_tables()),
        decode=draw(attention_tables()),
        prefill=draw(attention_tables()),
        host_prefill=draw(st.none() | attention_tables()),
        entry_share=draw(st.floats(0, 1)),
    )
    return msgspec.structs.replace(BASE, accelerator=accelerator, host_attention=draw(attention_tables()))


def never_falls(costs: CostModel, one: Work, other: Work) -> bool:
    less = Work(
        one.stage, min(one.rows, other.rows), min(one.tokens, other.tokens), min(one.bytes, other.bytes)
    )
    more = Work(
        one.stage, max(one.rows, other.rows), max(one.tokens, other.tokens), max(one.bytes, other.bytes)
    )
    low, high = costs.seconds(less), costs.seconds(more)
    return 0 <= low <= high * (1 + 1e-9) + 1e-12


@given(made_profiles(), st.tuples(SIZES, SIZES, SIZES), st.tuples(SIZES, SIZES, SIZES))
def test_more_work_never_takes_less(profile: Profile, one, other):
    costs = ProfileCosts(profile)
    for stage in Stage:
        assert never_falls(costs, Work(stage, *one), Work(stage, *other))


@given(made_profiles(), st.lists(st.tuples(st.sampled_from(Stage), st.floats(0, 100)), max_size=20))
def test_corrected_too_and_never_by_more_than_20(profile: Profile, observed):
    costs = ProfileCosts(profile)
    calibration = Calibration()
    for stage, ratio in observed:
        calibration.observe_stages({stage: 1.0}, {stage: ratio})
    corrected = calibration.corrected(costs)
    for stage in Stage:
        one, other = Work(stage, 3, 70, 1000), Work(stage, 5, 900, 2000)
        assert never_falls(corrected, one, other)
        seconds = costs.seconds(other)
        assert seconds / 20.001 <= corrected.seconds(other) <= seconds * 20.001


@given(made_profiles())
def test_a_written_profile_is_read_as_it_was(profile: Profile):
    assert decode_profile(encode_profile(profile), "p.json") == profile


@given(made_profiles(), SIZES)
def test_no_rows_take_no_time(profile: Profile, tokens: int):
    costs = ProfileCosts(profile)
    for stage in Stage:
        assert costs.seconds(Work(stage, 0, tokens)) == 0

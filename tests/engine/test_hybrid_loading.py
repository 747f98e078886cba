"""What serving with an accelerator says of its profile."""

from __future__ import annotations

import logging

import pytest

from benchmarks.published_profiles import profiles
from engine.hybrid.loading import Extrapolations
from scheduler.profile_costs import ProfileCosts


def test_it_warns_once_of_each_stage_beyond_the_profile(caplog: pytest.LogCaptureFixture):
    (profile, *_others) = (each for each in profiles().values() if each.host_attention is not None)
    costs = ProfileCosts(profile)
    extrapolations = Extrapolations(costs)
    with caplog.at_level(logging.WARNING):
        costs.dense(1)
        extrapolations.warn()
        assert not caplog.records
        costs.dense(10**6)
        extrapolations.warn()
        extrapolations.warn()
        costs.host_attention(8, 10**9)
        extrapolations.warn()
    assert [record.args for record in caplog.records] == [("dense",), ("host_attention",)]

"""Recorded profiles: what is read, what is refused, and those that come with the project."""

from __future__ import annotations

import json

import msgspec
import pytest

from benchmarks import published_profiles
from scheduler.profile import (
    AttentionTimes,
    Profile,
    RowTimes,
    decode_profile,
    encode_profile,
    for_model,
    with_host_attention,
)
from scheduler.profile_costs import ProfileCosts

PROFILES = published_profiles.profiles()
T4, A10, EMULATED = PROFILES.values()


def refused(change) -> str:
    """The message for the T4's profile after ``change`` of its JSON."""
    content = json.loads(encode_profile(T4))
    change(content)
    with pytest.raises(ValueError, match=r"^p\.json is ") as caught:
        decode_profile(json.dumps(content).encode(), "p.json")
    return str(caught.value)


def change(path: str, value: object):
    """Sets what is at ``path``."""

    def apply(content: dict) -> None:
        *way, last = path.split(".")
        for name in way:
            content = content[name]
        content[last] = value

    return apply


@pytest.mark.parametrize("name", PROFILES)
def test_the_files_are_what_the_script_writes(name):
    content = (published_profiles.FOLDER / name).read_bytes()
    assert content == encode_profile(PROFILES[name])
    assert decode_profile(content, name) == PROFILES[name]


def test_there_are_no_other_unmeasured_files():
    for path in published_profiles.FOLDER.glob("*.json"):
        profile = decode_profile(path.read_bytes(), path.name)
        assert path.name in PROFILES or profile.provenance.source == "measured"


def test_a_list_of_numbers_is_on_one_line():
    lines = encode_profile(EMULATED).decode().splitlines()
    assert '      "tokens": [256, 4096, 65536, 1048576],' in lines
    assert lines[-1] == "}"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", 2, "a profile of format 2; this version reads format 1"),
        ("colour", "blue", "unknown field `colour`"),
        ("accelerator.speed", 1, "unknown field `speed` - at `$.accelerator`"),
        ("model.layers", 0, "`int` >= 1 - at `$.model.layers`"),
        ("model.dtype", "float8", "'float8' - at `$.model.dtype`"),
        ("accelerator.entry_share", 1.5, "<= 1.0 - at `$.accelerator.entry_share`"),
        ("accelerator.dense.rows", [1, 1], "rows must grow from point to point, not go from 1 to 1"),
        ("accelerator.dense.rows", [0, 1], "rows must begin with 1 or more"),
        ("accelerator.dense.rows", [1, 2], "2 rows, but 15 seconds - at `$.accelerator.dense`"),
        ("accelerator.decode.seconds", [[0, 0, 0, 0]], "3 rows, but seconds for 1"),
        ("accelerator.decode.tokens", [1, 2], "2 tokens, but 4 seconds - at `$.accelerator.decode`"),
        ("accelerator.upload.bytes_per_second", 0, "`float` > 0.0"),
        ("host_attention.seconds", [[0, 0, 0, -1]] * 3, "seconds must be 0 or more, not -1.0"),
    ],
)
def test_what_is_wrong_is_named(path, value, message):
    assert message in refused(change(path, value))


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"format": 1, "x": ' + b"[" * 200_000, b'{"format": 1, "x": "\xff"}']
)
def test_what_is_no_profile_is_refused(content):
    with pytest.raises(ValueError, match=r"^p\.json is not a profile: "):
        decode_profile(content, "p.json")


def test_a_table_is_checked_where_it_is_made():
    with pytest.raises(ValueError, match="not nan"):
        RowTimes(rows=(1, 2), seconds=(1.0, float("nan")))
    with pytest.raises(ValueError, match="tokens needs two points"):
        AttentionTimes(rows=(1, 2), tokens=(1,), seconds=((1.0,), (1.0,)))


def test_a_side_that_was_not_measured_is_asked_for():
    with pytest.raises(ValueError, match="no host attention times"):
        ProfileCosts(EMULATED)
    with pytest.raises(ValueError, match="no accelerator times"):
        ProfileCosts(msgspec.structs.replace(T4, accelerator=None))
    table = AttentionTimes(rows=(1, 8), tokens=(8, 64), seconds=((1.0, 2.0), (3.0, 4.0)))
    assert ProfileCosts(with_host_attention(EMULATED, table)).host_attention(8, 8) == 3


def test_a_made_up_profile_takes_the_types_of_the_model():
    model = msgspec.structs.replace(
        EMULATED.model, name="mine", page_size=8, dtype="float32", kv_dtype="int8"
    )
    assert for_model(EMULATED, model).model == model
    assert for_model(EMULATED, model).accelerator == EMULATED.accelerator


def test_another_models_profile_is_refused():
    with pytest.raises(
        ValueError, match="profile of Llama-2-7B has layers 32 instead of 30, hidden_size 4096"
    ):
        for_model(T4, EMULATED.model)
    model = msgspec.structs.replace(T4.model, kv_dtype="int8")
    with pytest.raises(ValueError, match=r"has kv_dtype float16 instead of int8$"):
        for_model(T4, model)


def iteration(profile: Profile, rows: int, tokens: int) -> float:
    """Seconds of a decode iteration without host rows."""
    costs = ProfileCosts(profile)
    layer = costs.dense(rows) + costs.device_decode(rows, tokens)
    return costs.overhead + costs.layers * layer + costs.head(rows)


def test_a_t4_reads_the_weights_of_7b_in_an_iteration():
    read = 13.2e9 / 320e9  # 13.5 GB but for the token embedding, of which only a row is read
    assert read / 0.8 < iteration(T4, 1, 500) < 1.1 * read / 0.8
    assert iteration(T4, 64, 500) == pytest.approx(iteration(T4, 1, 500))
    # 3 rows of 700 tokens: 16 KB a token and layer
    attention = iteration(T4, 3, 2100) - iteration(T4, 3, 0)
    assert attention == pytest.approx(32 * 2100 * 16384 / (320e9 * 0.8), rel=0.01)


def test_an_a10_reads_the_weights_of_8b_in_an_iteration():
    read = 15.0e9 / 600e9
    assert read / 0.8 < iteration(A10, 1, 500) < 1.15 * read / 0.8
    attention = iteration(A10, 38, 38_000) - iteration(A10, 38, 0)
    assert attention == pytest.approx(32 * 38_000 * 4096 / (600e9 * 0.8), rel=0.01)


@pytest.mark.parametrize(("profile", "token"), [(T4, 16384), (A10, 4096)], ids=["T4", "A10"])
def test_the_cpu_attends_at_40_gigabytes_a_second(profile, token):
    costs = ProfileCosts(profile)
    taken = costs.host_attention(41, 41 * 1700) - costs.host_attention(41, 41 * 700)
    assert 41 * 1000 * token / taken == pytest.approx(40e9, rel=0.01)
    assert costs.page_bytes == 32 * 16 * token


@pytest.mark.parametrize(("profile", "operations"), [(T4, 13.2e9 * 512 / 65e12), (A10, 15e9 * 512 / 125e12)])
def test_prefill_is_bound_by_arithmetic(profile, operations):
    costs = ProfileCosts(profile)
    assert costs.layers * costs.dense(512) == pytest.approx(operations / 0.5, rel=0.1)
    assert costs.device_prefill(512, 0) < 0.1 * costs.dense(512)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_every_assumption_is_stated(profile):
    assert profile.provenance.source != "measured"
    assert profile.provenance.spread is None
    assert len(profile.provenance.assumptions) >= 5
    text = " ".join(profile.provenance.assumptions)
    if profile.provenance.source == "published":
        for figure in (
            "80%",
            "50%",
            "30%",
            "75%",
            "10 us",
            "100 us",
            "2 ms",
            "40 GB/s",
            "20 us",
            "datasheet",
        ):
            assert figure in text


def test_the_emulated_accelerator_is_as_the_issue_wants_it():
    table = AttentionTimes(rows=(1, 8), tokens=(8, 64), seconds=((1e-6, 1e-5), (1e-6, 1e-5)))
    costs = ProfileCosts(with_host_attention(EMULATED, table))
    assert [costs.dense(rows) for rows in (1, 32, 512)] == pytest.approx([1e-3, 1e-3, 4e-3])
    assert costs.head(4) == pytest.approx(1e-3)
    assert costs.device_decode(4, 4000) == pytest.approx(50e-6 + 4000 * 768 / 100e9, rel=0.01)
    assert costs.download(10**6) == pytest.approx(110e-6)
    assert (costs.launch, costs.overhead, costs.layers) == (200e-6, 1e-3, 30)

"""Profiles of tiny models: every table is there, and what is attended to is never the same twice in a row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from engine.devices.choice import make_device
from engine.kernels.loader import load_kernels
from engine.kv_storage import KVStorage
from engine.models.decoder import DecoderModel
from engine.profiler.host_attention import measure_host_attention
from engine.profiler.kv_pages import KVPages
from engine.profiler.measure import Target, measure_profile
from engine.profiler.shape import model_shape
from engine.profiler.startup import measure_at_start
from scheduler.profile import Profile, decode_profile, encode_profile, for_model, with_host_attention
from scheduler.profile_costs import ProfileCosts
from scheduler.tier import Tier
from tests.builders.paged_model import load_directory
from tests.builders.tiny_models import make_tiny_model

ROOT = Path(__file__).resolve().parents[2]
MEMORY = 2**20


class Ticking:
    """A clock by which everything takes long: what has to be measured is, and no more."""

    def __init__(self) -> None:
        self._time = 0.0

    def now(self) -> float:
        self._time += 1.0
        return self._time


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DecoderModel]:
    directory = tmp_path_factory.mktemp(request.param)
    make_tiny_model(request.param, directory)
    yield load_directory(directory)


def profiled(model: DecoderModel, device: str, kv_dtype: torch.dtype, kernels: str) -> Profile:
    with closing(make_device(device, None)) as opened:
        target = Target(
            model=model,
            device=opened,
            kernels=load_kernels(kernels, 2),
            page_size=8,
            kv_dtype=kv_dtype,
            max_rows=20,
            memory=MEMORY,
        )
        return measure_profile(
            target, seconds=1.0, date="2026-11-30", clock=Ticking(), progress=lambda _title, _done: None
        )


@pytest.mark.parametrize(
    ("device", "kv_dtype", "kernels"),
    [("emulated", torch.float32, "auto"), ("cpu", torch.int8, "auto"), ("emulated", torch.bfloat16, "torch")],
)
def test_a_profile_is_whole(model: DecoderModel, device: str, kv_dtype: torch.dtype, kernels: str) -> None:
    profile = profiled(model, device, kv_dtype, kernels)
    assert decode_profile(encode_profile(profile), "p") == profile
    other = KVStorage(model.config, 1, 16, kv_dtype)
    assert for_model(profile, model_shape(model, other)).model.page_size == 16
    times, host = profile.accelerator, profile.host_attention
    assert times is not None and host is not None
    assert times.dense.rows == (1, 2, 4, 8, 16, 20) and times.decode.rows == host.rows == (1, 4, 16, 20)
    assert times.prefill.rows == (2, 16, 20) and times.prefill.tokens[:2] == (0, 256)
    assert times.decode.tokens == host.tokens and host.tokens[0] == 256
    tables = (times.decode, times.prefill, times.host_prefill, host)
    measured = [value for table in tables if table is not None for line in table.seconds for value in line]
    measured += [*times.dense.seconds, *times.head.seconds, times.launch]
    measured += [times.download.bytes_per_second, times.upload.bytes_per_second]
    assert all(value > 0 for value in measured)
    assert 0 < times.entry_share <= 1


def test_its_provenance_says_what_it_is(model: DecoderModel) -> None:
    found = profiled(model, "emulated", torch.float32, "auto").provenance
    assert (found.source, found.date) == ("measured", "2026-11-30")
    assert found.accelerator is not None and found.accelerator.startswith("none: the CPU stands in for it")
    assert found.host and found.spread is not None
    assert found.versions.keys() == {"tandem", "python", "torch"}
    assert any("stands in" in sentence for sentence in found.assumptions)


def test_the_cost_model_made_of_it_is_monotone(model: DecoderModel) -> None:
    costs = ProfileCosts(profiled(model, "emulated", torch.float32, "auto"))
    over_rows = [(costs.dense(rows), costs.head(rows)) for rows in range(1, 30)]
    assert all(column == sorted(column) for column in map(list, zip(*over_rows, strict=True)))
    over_tokens = [costs.host_attention(4, tokens) for tokens in range(4, 5000, 50)]
    assert over_tokens == sorted(over_tokens)


# -- pages


def test_batches_take_other_pages_until_all_have_had_their_turn(model: DecoderModel) -> None:
    pages = KVPages(model.config, 8, torch.float32, tokens=64, sequences=4, memory=MEMORY)
    first, second, third = (pages.batch([(15, 1), (0, 16)]).sequences.page_ids.tolist() for _ in range(3))
    assert pages.storage.num_pages == 12
    assert sorted(first + second + third) == list(range(12))


def test_pages_are_written_before_they_are_read(model: DecoderModel) -> None:
    for dtype in (torch.float32, torch.int8):
        pages = KVPages(model.config, 8, dtype, tokens=64, sequences=4, memory=MEMORY)
        stored = pages.storage.tokens.float()
        assert (stored.abs().amax(dim=(-1, -2)) > 0).all() and stored.isfinite().all()


def test_layers_take_turns_by_kind(model: DecoderModel) -> None:
    sliding = model.config.sliding_layers or (False,) * model.config.num_layers
    pages = KVPages(model.config, 8, torch.float32, tokens=64, sequences=4, memory=MEMORY)
    turns = [pages.next_layers() for _ in range(2 * model.config.num_layers)]
    assert {layer for turn in turns for layer, _ in turn} == set(range(model.config.num_layers))
    for turn in turns:
        assert sum(share for _, share in turn) == pytest.approx(1.0)
        for layer, share in turn:
            assert share == sliding.count(sliding[layer]) / len(sliding)


def test_only_as_many_layers_as_memory_has_room_for(model: DecoderModel) -> None:
    pages = KVPages(model.config, 8, torch.float32, tokens=64, sequences=4, memory=1)
    kinds = set(model.config.sliding_layers or (False,))
    assert pages.config.num_layers == (1 if len(kinds) == 1 else model.config.sliding_layers.index(False) + 1)
    assert sum(share for _, share in pages.next_layers()) == pytest.approx(1.0)


# -- at the engine's start, and as a command


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_host_attention_alone(model: DecoderModel, kernels: str) -> None:
    found = measure_host_attention(
        model.config, model.dtype, torch.bfloat16, 16, load_kernels(kernels, 2), 1.0, Ticking()
    )
    assert found.rows == (1, 4, 16, 64) and found.tokens[0] == 64
    assert all(value > 0 for line in found.seconds for value in line)


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_the_accelerator_alone(model: DecoderModel, kernels: str) -> None:
    tiers = {tier: KVStorage(model.config, 1, 16, torch.bfloat16) for tier in Tier}
    found = measure_at_start(model, tiers, load_kernels(kernels, 2), Ticking())
    times = found.accelerator
    assert times is not None and found.host_attention is None
    assert found.model == model_shape(model, tiers[Tier.HOST])
    assert decode_profile(encode_profile(found), "p") == found
    assert all(value > 0 for value in (*times.dense.seconds, *times.head.seconds, times.launch))
    ProfileCosts(with_host_attention(found, times.decode))


def test_the_command_writes_a_profile(tmp_path: Path) -> None:
    make_tiny_model("llama", tmp_path / "tiny")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-m",
        "server.cli",
        "profile",
        "tiny",
        "--seconds",
        "0.1",
        "--dtype",
        "float32",
    ]
    done = subprocess.run(
        [*command, "--max-batch-tokens", "16"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tiny-emulated.json\n\ndense work of a layer")
    assert "Profiling tiny: 0%, loading the model\n" in done.stderr
    content = (tmp_path / "tiny-emulated.json").read_bytes()
    assert decode_profile(content, "p").model.name == "tiny"
    assert json.loads(content)["provenance"]["source"] == "measured"

"""Sampling defaults of a model's generation_config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.model_error import ModelError
from engine.weights.source import ModelSource
from server.text.sampling_defaults import SamplingDefaults, load_sampling_defaults


def load(directory: Path, text: str) -> SamplingDefaults:
    (directory / "generation_config.json").write_text(text)
    return load_sampling_defaults(ModelSource("huggingface", directory, "m"))


def test_recommended_values(tmp_path: Path):
    config = {
        "do_sample": False,
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
        "min_p": 0.05,
        "repetition_penalty": 1.05,
        "eos_token_id": [1, 2],
    }
    expected = SamplingDefaults(temperature=0.7, top_p=0.8, top_k=20, min_p=0.05, repetition_penalty=1.05)
    assert load(tmp_path, json.dumps(config)) == expected


@pytest.mark.parametrize("text", ["{}", '{"temperature": null, "top_k": -1}', '{"length_penalty": Infinity}'])
def test_neutral_where_nothing_is_recommended(tmp_path: Path, text: str):
    assert load(tmp_path, text) == SamplingDefaults()


def test_neutral_without_the_file_and_for_gguf(tmp_path: Path):
    assert load_sampling_defaults(ModelSource("huggingface", tmp_path, "m")) == SamplingDefaults()
    assert load_sampling_defaults(ModelSource("gguf", tmp_path / "m.gguf", "m")) == SamplingDefaults()


def test_the_neutral_values_are_those_that_change_nothing():
    neutral = SamplingDefaults()
    assert (neutral.temperature, neutral.top_p, neutral.top_k) == (1.0, 1.0, 0)
    assert (neutral.min_p, neutral.repetition_penalty) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"temperature": "hot"}', r"generation_config\.json: .*temperature"),
        ('{"top_p": 1.5}', "top_p"),
        ('{"top_k": -2}', "top_k"),
        ('{"repetition_penalty": 0}', "repetition_penalty"),
        ("[]", "not a JSON object"),
    ],
)
def test_wrong_values_are_named(tmp_path: Path, text: str, message: str):
    with pytest.raises(ModelError, match=message):
        load(tmp_path, text)


def test_the_packaged_model_has_what_its_card_recommends(tmp_path):
    source = ModelSource("gguf", tmp_path / "m.gguf", "smollm2-135m-instruct")
    assert load_sampling_defaults(source) == SamplingDefaults(temperature=0.2, top_p=0.9)

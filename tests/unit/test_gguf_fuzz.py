"""A damaged GGUF file loads or is refused with a ModelError; nothing else may happen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.model_error import ModelError
from engine.weights.gguf_checkpoint import GgufCheckpoint
from tests.builders.gguf_files import TinyModel, write_model

MODELS = (
    TinyModel(layers=1),
    TinyModel(
        architecture="gemma3",
        layers=1,
        extra={
            "attention.sliding_window": 8,
            "attention.sliding_window_pattern": 6,
            "rope.scaling.factor": 2.0,
        },
    ),
)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    directory = tmp_path_factory.mktemp("intact")
    paths = [
        write_model(directory / f"{i}.gguf", model, matrix_type="Q8_0") for i, model in enumerate(MODELS)
    ]
    return [path.read_bytes() for path in paths]


def header_size(content: bytes) -> int:
    return content.index(b"output_norm.weight") + 64


def load_everything(content: bytes, path: Path) -> None:
    path.unlink(missing_ok=True)  # a mapped file must not be truncated
    path.write_bytes(content)
    checkpoint = GgufCheckpoint(path)
    for name in checkpoint.names:
        loaded = checkpoint.load(name, torch.float32)
        assert tuple(loaded.shape) == checkpoint.shape(name)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bytes(intact: list[bytes], tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from(intact), label="file"))
    position = st.integers(0, header_size(bytes(content)))
    for _ in range(data.draw(st.integers(1, 3), label="flips")):
        content[data.draw(position)] = data.draw(
            st.sampled_from([0, 1, 2, 9, 127, 128, 255]) | st.integers(0, 255)
        )
    try:
        load_everything(bytes(content), tmp_path / "flipped.gguf")
    except ModelError as error:
        assert "flipped.gguf" in str(error)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_truncation_is_noticed(intact: list[bytes], tmp_path: Path, data: st.DataObject) -> None:
    content = data.draw(st.sampled_from(intact), label="file")
    longest = len(content) - 32  # gguf pads the file's end
    end = data.draw(st.integers(0, header_size(content)) | st.integers(0, longest), label="length")
    with pytest.raises(ModelError, match=r"cut\.gguf"):
        load_everything(content[:end], tmp_path / "cut.gguf")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_noise_behind_the_magic(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ModelError, match=r"noise\.gguf"):
        load_everything(b"GGUF\3\0\0\0" + content, tmp_path / "noise.gguf")


def test_intact_files_load(intact: list[bytes], tmp_path: Path) -> None:
    for content in intact:
        load_everything(content, tmp_path / "intact.gguf")

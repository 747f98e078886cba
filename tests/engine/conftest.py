"""One torch thread: tiny tensors gain nothing from two, and lose much when the cores are busy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from engine.models.decoder import DecoderModel
from tests.builders.paged_model import load_directory
from tests.builders.tiny_models import make_tiny_model


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session", params=["llama", "gemma3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    """A tiny one, float32: plain layers, or sliding ones with two kinds of rotation."""
    return load_directory(make_tiny_model(request.param, tmp_path_factory.mktemp("model")).directory)

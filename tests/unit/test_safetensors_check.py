"""Opening and checking checkpoints of both formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from engine.model_error import ModelError
from engine.weights.check import check_checkpoint, open_checkpoint
from engine.weights.checkpoint import Checkpoint
from engine.weights.gguf_checkpoint import GgufCheckpoint
from engine.weights.huggingface_checkpoint import HuggingFaceCheckpoint
from engine.weights.source import ModelSource
from tests.builders.gguf_files import TinyModel, reference_tensors, write_model

EXPECTED = {name: values.shape for name, values in reference_tensors(TinyModel()).items()}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    path = write_model(tmp_path / "tiny.gguf", TinyModel())
    return open_checkpoint(ModelSource("gguf", path, "tiny"))


def huggingface(directory: Path, tensors: dict[str, torch.Tensor], **config: object) -> Checkpoint:
    LlamaConfig(hidden_size=64, num_attention_heads=4, **config).save_pretrained(directory)
    save_file(tensors, directory / "model.safetensors")
    return open_checkpoint(ModelSource("huggingface", directory, "tiny"))


def test_both_kinds_open(checkpoint: Checkpoint, tmp_path: Path) -> None:
    assert isinstance(checkpoint, GgufCheckpoint)
    assert checkpoint.config.name == "tiny"
    other = huggingface(tmp_path / "directory", {"a": torch.ones(1)})
    assert isinstance(other, HuggingFaceCheckpoint)
    assert other.config.name == "tiny"


def test_a_matching_checkpoint_passes(checkpoint: Checkpoint) -> None:
    check_checkpoint(checkpoint, EXPECTED)


def test_missing_tensors_are_counted_and_a_few_named(checkpoint: Checkpoint) -> None:
    one = EXPECTED | {"lm_head.weight": (64, 64)}
    with pytest.raises(ModelError, match=r"tiny: tensor lm_head.weight is missing from the checkpoint"):
        check_checkpoint(checkpoint, one)
    with pytest.raises(ModelError, match=r"tensors lm_head\.weight, x\.0 are missing"):
        check_checkpoint(checkpoint, one | {"x.0": (1,)})
    many = one | {f"x.{i}": (1,) for i in range(20)}
    with pytest.raises(ModelError, match=r"tensors lm_head.weight, x.0, x.1 and 18 more are missing"):
        check_checkpoint(checkpoint, many)


def test_wrong_shape(checkpoint: Checkpoint) -> None:
    with pytest.raises(
        ModelError, match=r"'model.norm.weight' has shape \[64\], the configuration asks for \[65\]"
    ):
        check_checkpoint(checkpoint, EXPECTED | {"model.norm.weight": (65,)})


def test_a_tensor_that_would_be_ignored_is_refused(tmp_path: Path) -> None:
    tensors = reference_tensors(TinyModel()) | {"blk.0.attn_sinks.weight": np.ones(4, dtype=np.float32)}
    odd = GgufCheckpoint(write_model(tmp_path / "odd.gguf", TinyModel(), tensors))
    with pytest.raises(ModelError, match=r"tensor blk.0.attn_sinks.weight is unknown to family 'llama'"):
        check_checkpoint(odd, EXPECTED)


@pytest.mark.parametrize("tied", [True, False])
def test_only_a_tied_copy_of_the_head_may_be_left_over(tmp_path: Path, tied: bool) -> None:
    left_over = {
        "lm_head.weight": torch.ones(1),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(1),
    }
    found = huggingface(tmp_path, {"a": torch.ones(2), **left_over}, tie_word_embeddings=tied)
    if tied:
        check_checkpoint(found, {"a": (2,)})
    else:
        with pytest.raises(ModelError, match=r"tensor lm_head.weight is unknown"):
            check_checkpoint(found, {"a": (2,)})

"""Hugging Face directories: against models that transformers saved, and against damaged files."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from engine.model_error import ModelError
from engine.weights.huggingface_checkpoint import HuggingFaceCheckpoint

SMALL: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
INDEX = "model.safetensors.index.json"
TENSORS = {"a": torch.arange(6, dtype=torch.float32).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}


def write_config(directory: Path) -> None:
    LlamaConfig(**SMALL).save_pretrained(directory)


def plain(directory: Path) -> Path:
    """A directory with one file; returns the file."""
    write_config(directory)
    save_file(TENSORS, directory / "model.safetensors")
    return directory / "model.safetensors"


@pytest.mark.parametrize("shard_size", ["1GB", "20KB"])
def test_a_model_saved_by_transformers(tmp_path: Path, shard_size: str) -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SMALL))
    model.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (tmp_path / INDEX).exists() == (shard_size == "20KB")
    checkpoint = HuggingFaceCheckpoint(tmp_path, "tiny")
    expected = model.state_dict()
    assert checkpoint.config.name == "tiny"
    assert checkpoint.names == expected.keys()
    for name, values in expected.items():
        assert checkpoint.shape(name) == tuple(values.shape)
        assert checkpoint.nbytes(name) == values.nbytes
        assert torch.equal(checkpoint.load(name, torch.float32), values)
        assert torch.equal(checkpoint.load(name, torch.bfloat16), values.to(torch.bfloat16))


def test_tied_model_has_no_head(tmp_path: Path) -> None:
    small = {key: value for key, value in SMALL.items() if key != "head_dim"}
    Qwen2ForCausalLM(Qwen2Config(**small, tie_word_embeddings=True)).save_pretrained(tmp_path)
    checkpoint = HuggingFaceCheckpoint(tmp_path)
    assert checkpoint.config.name == tmp_path.name
    assert "lm_head.weight" not in checkpoint.names
    assert checkpoint.shape("model.layers.1.self_attn.k_proj.bias") == (16,)


def test_language_part_of_a_multimodal_model(tmp_path: Path) -> None:
    text = {**SMALL, "vocab_size": 300_000 // 1000, "pad_token_id": 0}
    vision = {
        "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
        "image_size": 28, "patch_size": 14,
    }  # fmt: skip
    config = Gemma3Config(text_config=text, vision_config=vision, image_token_index=7, mm_tokens_per_image=1)
    model = Gemma3ForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    names_of_text_model = Gemma3ForCausalLM(Gemma3TextConfig(**text)).state_dict().keys() - {"lm_head.weight"}
    checkpoint = HuggingFaceCheckpoint(tmp_path)
    assert checkpoint.names == names_of_text_model
    expected = model.state_dict()["model.language_model.layers.1.mlp.up_proj.weight"]
    assert torch.equal(checkpoint.load("model.layers.1.mlp.up_proj.weight", torch.float32), expected)


@pytest.mark.parametrize(
    ("saved", "renamed"),
    [
        ("language_model.model.norm.weight", "model.norm.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("model.language_model.norm.weight", "model.norm.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("vision_tower.x", None),
        ("model.vision_tower.x", None),
        ("multi_modal_projector.x", None),
        ("model.multi_modal_projector.x", None),
    ],
)
def test_old_and_new_multimodal_names(tmp_path: Path, saved: str, renamed: str | None) -> None:
    write_config(tmp_path)
    save_file({saved: torch.ones(1)}, tmp_path / "model.safetensors")
    assert HuggingFaceCheckpoint(tmp_path).names == ({renamed} if renamed else set())


def test_a_loaded_tensor_does_not_depend_on_the_file(tmp_path: Path) -> None:
    file = plain(tmp_path)
    loaded = HuggingFaceCheckpoint(tmp_path).load("a", torch.float32)
    with file.open("r+b") as handle:
        handle.seek(-40, 2)
        handle.write(bytes(40))
    assert torch.equal(loaded, TENSORS["a"])


def test_a_stored_tensor_is_in_the_mapped_file(tmp_path: Path) -> None:
    plain(tmp_path)
    checkpoint = HuggingFaceCheckpoint(tmp_path)
    stored = checkpoint.stored("a")
    assert (stored.type_name, stored.shape) == ("F32", tuple(TENSORS["a"].shape))
    values = (ctypes.c_float * TENSORS["a"].numel()).from_address(stored.address)
    assert list(values) == TENSORS["a"].flatten().tolist()
    assert stored.address == checkpoint.stored("a").address


def test_a_single_file_may_have_any_name(tmp_path: Path) -> None:
    plain(tmp_path).rename(tmp_path / "weights.safetensors")
    assert HuggingFaceCheckpoint(tmp_path).names == {"a", "b"}


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    plain(tmp_path)
    checkpoint = HuggingFaceCheckpoint(tmp_path)
    for method in (checkpoint.shape, checkpoint.nbytes, lambda name: checkpoint.load(name, torch.float32)):
        with pytest.raises(ModelError, match="tensor 'c' is missing"):
            method("c")


def truncate(directory: Path) -> None:
    file = plain(directory)
    file.write_bytes(file.read_bytes()[:-1])


def cut_header(directory: Path) -> None:
    file = plain(directory)
    file.write_bytes(file.read_bytes()[:20])


def empty(directory: Path) -> None:
    plain(directory).write_bytes(b"")


def absurd_header(directory: Path) -> None:
    file = plain(directory)
    file.write_bytes((2**62).to_bytes(8, "little") + file.read_bytes()[8:])


def unsupported_type(directory: Path) -> None:
    write_config(directory)
    save_file({"a": torch.ones(2).to(torch.float8_e4m3fn)}, directory / "model.safetensors")


def index(directory: Path, weight_map: dict[str, Any]) -> None:
    plain(directory).rename(directory / "model-00001-of-00001.safetensors")
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def two_files(directory: Path) -> None:
    plain(directory).rename(directory / "x.safetensors")
    save_file(TENSORS, directory / "y.safetensors")


def pickle_only(directory: Path) -> None:
    write_config(directory)
    (directory / "pytorch_model.bin").write_bytes(b"")


def twice(directory: Path) -> None:
    write_config(directory)
    tensors = {"model.norm.weight": torch.ones(1), "language_model.model.norm.weight": torch.ones(1)}
    save_file(tensors, directory / "model.safetensors")


SHARD = "model-00001-of-00001.safetensors"
DAMAGED: dict[str, tuple[Callable[[Path], None], str]] = {
    "truncated": (truncate, "model.safetensors: can't be read"),
    "cut in the header": (cut_header, "model.safetensors: can't be read"),
    "empty": (empty, "model.safetensors: can't be read"),
    "absurd header length": (absurd_header, "model.safetensors: can't be read"),
    "unsupported type": (
        unsupported_type,
        "tensor 'a' has type F8_E4M3, which is not supported; supported: F32",
    ),
    "shard missing": (lambda d: index(d, {"a": "other.safetensors"}), "other.safetensors: is missing, and"),
    "tensor not in shard": (lambda d: index(d, {"a": SHARD, "c": SHARD}), "lacks tensor 'c'"),
    "shard elsewhere": (
        lambda d: index(d, {"a": "../x.safetensors"}),
        "'../x.safetensors' is not a file of its",
    ),
    "index malformed": (lambda d: index(d, {"a": 1}), "Expected `str`, got `int`"),
    "several files, no index": (two_files, "has 2 safetensors files, but no model.safetensors.index.json"),
    "pickle": (pickle_only, "has only pytorch_model.bin, a pickle"),
    "no weights": (write_config, "has no safetensors file"),
    "no config": (lambda d: save_file(TENSORS, d / "model.safetensors"), "config.json: can't be read"),
    "one tensor under two names": (twice, "tensor 'model.norm.weight' is there twice"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGED.values(), ids=DAMAGED.keys())
def test_damage_is_named_with_the_file(tmp_path: Path, damage: Callable[[Path], None], reason: str) -> None:
    damage(tmp_path)
    with pytest.raises(ModelError) as raised:
        HuggingFaceCheckpoint(tmp_path)
    assert str(tmp_path) in str(raised.value)
    assert reason in str(raised.value)

"""GGUF checkpoints against the tensors they were converted from, and SmolLM2 against gguf's reader."""

from __future__ import annotations

import ctypes
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize

from engine.model_error import ModelError
from engine.weights.gguf_checkpoint import GgufCheckpoint
from engine.weights.source import resolve
from tests.builders.gguf_files import TinyModel, reference_tensors, write_model

MODELS = {
    "llama": TinyModel(),
    "llama untied, biased": TinyModel(tied=False, qkv_bias=True),
    "qwen2": TinyModel(architecture="qwen2", qkv_bias=True),
    "qwen3": TinyModel(architecture="qwen3", tied=False),
    "gemma3": TinyModel(architecture="gemma3", extra={"attention.sliding_window": 16}),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_conversion_is_undone(tmp_path: Path, model: TinyModel) -> None:
    reference = reference_tensors(model)
    checkpoint = GgufCheckpoint(write_model(tmp_path / "m.gguf", model, reference))
    assert checkpoint.names == set(reference)
    for name, values in reference.items():
        loaded = checkpoint.load(name, torch.float32)
        expected = values
        if model.architecture == "gemma3" and name.endswith("norm.weight"):
            expected = (values + np.float32(1)) - np.float32(1)  # what the file still knows
        assert checkpoint.shape(name) == values.shape == tuple(loaded.shape)
        assert checkpoint.nbytes(name) == values.nbytes
        assert np.array_equal(loaded.numpy(), expected), name


def test_quantised_rows_are_put_back_in_order(tmp_path: Path) -> None:
    model = TinyModel()
    reference = reference_tensors(model)
    checkpoint = GgufCheckpoint(write_model(tmp_path / "m.gguf", model, reference, matrix_type="Q8_0"))
    for name in ("model.layers.1.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"):
        # Rows are quantised one by one, so permuting and quantising commute.
        quantised = quantize(reference[name], gguf.GGMLQuantizationType.Q8_0)
        expected = dequantize(quantised, gguf.GGMLQuantizationType.Q8_0)
        assert np.array_equal(checkpoint.load(name, torch.float32).numpy(), expected)
        assert checkpoint.nbytes(name) == quantised.nbytes


def test_stored_blocks_and_the_order_that_undoes_the_file_s(tmp_path: Path) -> None:
    model = TinyModel()
    checkpoint = GgufCheckpoint(write_model(tmp_path / "m.gguf", model, matrix_type="Q8_0"))
    for name in ("model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight"):
        stored = checkpoint.stored(name)
        assert stored is not None
        assert (stored.type_name, stored.shape) == (checkpoint.type_name(name), checkpoint.shape(name))
        file_bytes = (ctypes.c_char * checkpoint.nbytes(name)).from_address(stored.address)
        rows = np.frombuffer(file_bytes, dtype=np.uint8).reshape(stored.shape[0], -1)
        values = torch.from_numpy(dequantize(rows, gguf.GGMLQuantizationType.Q8_0).copy())
        assert (stored.row_order is not None) == ("q_proj" in name)
        ordered = values if stored.row_order is None else values[stored.row_order]
        assert torch.equal(ordered, checkpoint.load(name, torch.float32))


def test_what_is_more_than_reordered_is_not_given_as_stored(tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(write_model(tmp_path / "m.gguf", TinyModel(architecture="gemma3")))
    assert checkpoint.stored("model.norm.weight") is None
    assert checkpoint.stored("model.embed_tokens.weight") is not None
    with pytest.raises(ModelError, match="'absent' is missing"):
        checkpoint.stored("absent")


def test_gemma_norms_are_rounded_only_after_the_one_is_taken_off(tmp_path: Path) -> None:
    model = TinyModel(architecture="gemma3")
    name = "model.norm.weight"
    reference = reference_tensors(model) | {name: np.full(model.hidden, 2.0**-12, dtype=np.float32)}
    checkpoint = GgufCheckpoint(write_model(tmp_path / "m.gguf", model, reference))
    loaded = checkpoint.load(name, torch.bfloat16)  # 1 + 2**-12 is 1 in bfloat16
    assert loaded.dtype == torch.bfloat16
    assert loaded.tolist() == [2.0**-12] * model.hidden


def test_unknown_tensors_keep_their_name_for_the_check(tmp_path: Path) -> None:
    model = TinyModel()
    reference = reference_tensors(model) | {"blk.0.attn_sinks.weight": np.ones(4, dtype=np.float32)}
    checkpoint = GgufCheckpoint(write_model(tmp_path / "m.gguf", model, reference))
    assert "blk.0.attn_sinks.weight" in checkpoint.names


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", TinyModel())
    checkpoint = GgufCheckpoint(path)
    for method in (checkpoint.shape, checkpoint.nbytes, lambda name: checkpoint.load(name, torch.float32)):
        with pytest.raises(ModelError, match=r"m\.gguf: tensor 'lm_head.weight' is missing"):
            method("lm_head.weight")


def test_unsupported_type_is_named_before_anything_is_read(tmp_path: Path) -> None:
    model = TinyModel(hidden=256, intermediate=256, head_dim=64)
    with pytest.raises(ModelError, match="TQ2_0, which is not supported; supported: BF16, F16"):
        GgufCheckpoint(write_model(tmp_path / "m.gguf", model, matrix_type="TQ2_0"))


def test_rows_that_do_not_divide_into_heads(tmp_path: Path) -> None:
    model = TinyModel()
    tensors = reference_tensors(model)
    del tensors["model.layers.0.self_attn.q_proj.weight"]
    tensors["blk.0.attn_q.weight"] = np.ones((12, 64), dtype=np.float32)
    with pytest.raises(ModelError, match=r"attn_q.weight' \[12, 64\] does not divide into 4 heads"):
        GgufCheckpoint(write_model(tmp_path / "odd.gguf", model, tensors))


@pytest.fixture(scope="module")
def smollm2() -> Path:
    return resolve("smollm2-135m-instruct").path


def test_smollm2_equals_ggufs_reader(smollm2: Path) -> None:
    checkpoint = GgufCheckpoint(smollm2)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(smollm2).tensors}
    assert len(checkpoint.names) == len(theirs) == 272
    pairs = {"model.norm.weight": "output_norm.weight", "model.embed_tokens.weight": "token_embd.weight"}
    for layer in (0, 29):
        pairs |= {
            f"model.layers.{layer}.self_attn.q_proj.weight": f"blk.{layer}.attn_q.weight",
            f"model.layers.{layer}.self_attn.k_proj.weight": f"blk.{layer}.attn_k.weight",
            f"model.layers.{layer}.self_attn.v_proj.weight": f"blk.{layer}.attn_v.weight",
            f"model.layers.{layer}.self_attn.o_proj.weight": f"blk.{layer}.attn_output.weight",
            f"model.layers.{layer}.mlp.down_proj.weight": f"blk.{layer}.ffn_down.weight",
            f"model.layers.{layer}.post_attention_layernorm.weight": f"blk.{layer}.ffn_norm.weight",
        }
    for ours, their_name in pairs.items():
        expected = dequantize(theirs[their_name].data, theirs[their_name].tensor_type)
        for projection, heads in (("q_proj", 9), ("k_proj", 3)):
            if projection in ours:
                rows = [
                    head * 64 + (2 * i if i < 32 else 2 * (i - 32) + 1)
                    for head in range(heads)
                    for i in range(64)
                ]
                expected = expected[rows]
        assert np.array_equal(checkpoint.load(ours, torch.float32).numpy(), expected), ours
        assert checkpoint.shape(ours) == expected.shape


def test_smollm2_config(smollm2: Path) -> None:
    config = GgufCheckpoint(smollm2, "smollm2").config
    assert (config.family, config.name, config.vocab_size) == ("llama", "smollm2", 49_152)
    assert (config.hidden_size, config.intermediate_size, config.num_layers) == (576, 1536, 30)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.context_length, config.rope_theta) == (8192, 100_000.0)
    assert config.rms_norm_eps == pytest.approx(1e-5)
    assert config.tie_word_embeddings and not config.qkv_bias
    assert config.attention_scale == 0.125
    assert (config.bos_token_id, config.eos_token_ids) == (1, (2, 0))

"""Tiny GGUF files: models written as llama.cpp's converter does, and raw bytes for damaged ones."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize

TOKENS = ["<|endoftext|>", "<|im_end|>", "</s>", *(f"token{i}" for i in range(61))]
"""64 of them; the first two are control tokens, ``</s>`` is ordinary text."""


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """Sizes of a model small enough to write in a test, large enough for Q8_0 blocks of 32."""

    architecture: str = "llama"
    hidden: int = 64
    intermediate: int = 96
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    context: int = 128
    qkv_bias: bool = False
    tied: bool = True
    extra: Mapping[str, int | float | str | bool | Sequence[int | str | bool]] = field(default_factory=dict)
    """Further metadata; a key without a dot belongs to the architecture."""


def reference_tensors(model: TinyModel, seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 tensors under Hugging Face's names, shapes and layouts."""
    rng = np.random.default_rng(seed)
    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (len(TOKENS), model.hidden),
        "model.norm.weight": (model.hidden,),
    }
    if not model.tied:
        shapes["lm_head.weight"] = (len(TOKENS), model.hidden)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if model.architecture == "gemma3":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for layer in range(model.layers):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}{norm}.weight": (model.hidden,) for norm in norms}
        shapes |= {
            f"{prefix}self_attn.q_proj.weight": (q, model.hidden),
            f"{prefix}self_attn.k_proj.weight": (kv, model.hidden),
            f"{prefix}self_attn.v_proj.weight": (kv, model.hidden),
            f"{prefix}self_attn.o_proj.weight": (model.hidden, q),
            f"{prefix}mlp.gate_proj.weight": (model.intermediate, model.hidden),
            f"{prefix}mlp.up_proj.weight": (model.intermediate, model.hidden),
            f"{prefix}mlp.down_proj.weight": (model.hidden, model.intermediate),
        }
        if model.qkv_bias:
            shapes |= {f"{prefix}self_attn.{x}_proj.bias": (q if x == "q" else kv,) for x in "qkv"}
        if model.architecture in ("qwen3", "gemma3"):
            shapes |= {f"{prefix}self_attn.{x}_norm.weight": (model.head_dim,) for x in "qk"}
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def converted(model: TinyModel, name: str, values: np.ndarray) -> tuple[str, np.ndarray]:
    """GGUF's name and values, as convert_hf_to_gguf.py makes them (its ``permute`` word for word)."""
    if model.architecture == "llama" and ("q_proj" in name or "k_proj" in name):
        heads = model.heads if "q_proj" in name else model.kv_heads
        values = (
            values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
            .swapaxes(1, 2)
            .reshape(values.shape)
        )
    if model.architecture == "gemma3" and name.endswith("norm.weight"):
        values = values + np.float32(1)
    gemma = model.architecture == "gemma3"
    replacements = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers.": "blk.",
        "input_layernorm": "attn_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
        "post_attention_layernorm": "post_attention_norm" if gemma else "ffn_norm",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for old, new in replacements.items():
        name = name.replace(old, new)
    return name, values


def write_model(
    path: Path,
    model: TinyModel,
    tensors: Mapping[str, np.ndarray] | None = None,
    matrix_type: str = "F32",
    rope_factors: np.ndarray | None = None,
) -> Path:
    """Write the model; matrices are quantised to ``matrix_type``, vectors stay float32.

    ``tensors`` are under Hugging Face's names; default: ``reference_tensors(model)``.
    """
    writer = GGUFWriter(path, model.architecture)
    _add_metadata(writer, model)
    for name, values in (reference_tensors(model) if tensors is None else tensors).items():
        gguf_name, data = converted(model, name, values)
        type_ = GGMLQuantizationType[matrix_type if data.ndim > 1 else "F32"]
        writer.add_tensor(gguf_name, quantize(np.ascontiguousarray(data), type_), raw_dtype=type_)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_metadata(writer: GGUFWriter, model: TinyModel) -> None:
    writer.add_block_count(model.layers)
    writer.add_context_length(model.context)
    writer.add_embedding_length(model.hidden)
    writer.add_feed_forward_length(model.intermediate)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.kv_heads)
    writer.add_key_length(model.head_dim)
    writer.add_value_length(model.head_dim)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50_000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, *([1] * (len(TOKENS) - 2))])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for key, value in model.extra.items():
        full_key = (
            key if key.startswith(("general.", "tokenizer.", "split.")) else f"{model.architecture}.{key}"
        )
        add = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
        }
        add.get(type(value), writer.add_array)(full_key, value)


def string(text: str | bytes) -> bytes:
    """A GGUF string."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def key_value(key: str, type_number: int, payload: bytes) -> bytes:
    """A metadata entry."""
    return string(key) + struct.pack("<I", type_number) + payload


def tensor_entry(name: str, gguf_shape: Sequence[int], type_number: int = 0, offset: int = 0) -> bytes:
    """A directory entry; the shape is innermost dimension first."""
    sizes = struct.pack(f"<{len(gguf_shape)}Q", *gguf_shape)
    return string(name) + struct.pack("<I", len(gguf_shape)) + sizes + struct.pack("<IQ", type_number, offset)


def raw_file(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    tensor_count: int | None = None,
    key_count: int | None = None,
) -> bytes:
    """A whole file from its pieces, as wrong as the pieces are; aligned to 32."""
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(keys) if key_count is None else key_count,
    )
    header = magic + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + data

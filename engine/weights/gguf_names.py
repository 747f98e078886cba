"""GGUF's tensor names and Hugging Face's, and what llama.cpp's converter did to each tensor.

Source: gguf-py's tensor_mapping.py and convert_hf_to_gguf.py of llama.cpp.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from types import MappingProxyType

FAMILIES: Mapping[str, str] = MappingProxyType(
    {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3"}
)
"""Model family by ``general.architecture``. Mistral's files say ``llama``."""

_GLOBAL = MappingProxyType(
    {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
)
_LAYER = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
_GEMMA_LAYER = MappingProxyType(
    {
        **_LAYER,
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
)
_LAYER_NAME = re.compile(r"blk\.(0|[1-9][0-9]{0,3})\.([a-z_]+)\.(weight|bias)")


class Conversion(enum.Enum):
    """What the converter did to a tensor, to be undone when it is loaded."""

    NONE = enum.auto()
    PERMUTED_Q = enum.auto()
    """Rows of each query head interleaved for rope on neighbouring pairs."""
    PERMUTED_K = enum.auto()
    NORM_PLUS_ONE = enum.auto()
    """Gemma multiplies by 1 + weight; the file holds 1 + weight."""


def huggingface_name(family: str, name: str) -> str | None:
    """Hugging Face's name of the tensor GGUF calls ``name``, None for one it doesn't have."""
    if name in _GLOBAL:
        return _GLOBAL[name]
    match = _LAYER_NAME.fullmatch(name)
    layer_names = _GEMMA_LAYER if family == "gemma3" else _LAYER
    if match is None or match[2] not in layer_names:
        return None
    return f"model.layers.{match[1]}.{layer_names[match[2]]}.{match[3]}"


def conversion_of(family: str, huggingface_name: str) -> Conversion:
    """What has to be undone for this tensor."""
    module = huggingface_name.rpartition(".")[0]
    if family == "llama" and module.endswith("self_attn.q_proj"):
        return Conversion.PERMUTED_Q
    if family == "llama" and module.endswith("self_attn.k_proj"):
        return Conversion.PERMUTED_K
    if family == "gemma3" and module.endswith("norm"):
        return Conversion.NORM_PLUS_ONE
    return Conversion.NONE

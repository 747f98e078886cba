"""A small random model of every family, made by transformers, which is also its oracle."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 307


@dataclass(frozen=True)
class TinyModel:
    """What transformers saved, and the model it saved."""

    directory: Path
    oracle: PreTrainedModel

    def logits(self, token_ids: list[int]) -> Tensor:
        """[tokens, vocab], float32, of one forward pass without any cache."""
        with torch.inference_mode():
            logits = self.oracle(torch.tensor([token_ids]), use_cache=False).logits[0]
        return logits.float()


def make_tiny_model(name: str, directory: Path) -> TinyModel:
    """The named case of ``CASES`` with seeded random weights, saved in ``directory``."""
    torch.manual_seed(len(name))
    oracle = CASES[name]().eval()
    oracle.set_attn_implementation("eager")
    with torch.no_grad():
        for parameter_name, parameter in oracle.named_parameters():
            _randomise(parameter_name, parameter)
    oracle.save_pretrained(directory)
    return TinyModel(directory, oracle)


def _randomise(name: str, parameter: Tensor) -> None:
    """Far from transformers' tiny initial values, with which attention is flat and errors stay unseen."""
    if "norm" in name:
        parameter.add_(torch.randn_like(parameter) * 0.3)
    elif name.endswith("bias"):
        parameter.normal_(std=0.5)
    elif "embed" in name:
        parameter.normal_()
    else:
        parameter.normal_(std=1.5 / math.sqrt(parameter.shape[1]))


_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 72,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": None,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def _llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**_SHAPE, rope_parameters=_LLAMA3_ROPE))


def _llama_with_biases() -> PreTrainedModel:
    rope = {"rope_type": "linear", "rope_theta": 5_000.0, "factor": 4.0}
    return LlamaForCausalLM(
        LlamaConfig(
            **_SHAPE, rope_parameters=rope, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
        )
    )


def _mistral() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**_SHAPE, sliding_window=9))


def _qwen2() -> PreTrainedModel:
    shape = {key: value for key, value in _SHAPE.items() if key != "head_dim"}
    shape |= {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 1}
    return Qwen2ForCausalLM(Qwen2Config(**shape, tie_word_embeddings=True))


def _qwen2_sliding() -> PreTrainedModel:
    shape = {key: value for key, value in _SHAPE.items() if key != "head_dim"}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 4}
    return Qwen2ForCausalLM(
        Qwen2Config(**shape, use_sliding_window=True, sliding_window=11, max_window_layers=1)
    )


def _qwen3() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**_SHAPE, rms_norm_eps=1e-5))


def _gemma3() -> PreTrainedModel:
    rope = {
        "full_attention": {"rope_type": "linear", "rope_theta": 50_000.0, "factor": 4.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1_000.0},
    }
    shape = _SHAPE | {"num_hidden_layers": 4, "hidden_size": 60, "head_dim": 32, "pad_token_id": 0}
    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            **shape, rope_parameters=rope, sliding_window=7, sliding_window_pattern=3,
            query_pre_attn_scalar=20,
        )
    )  # fmt: skip


CASES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": _llama,
    "llama-with-biases": _llama_with_biases,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen2-sliding": _qwen2_sliding,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
}
NATIVE_CASES = tuple(name for name in CASES if name != "qwen2-sliding")
"""Those whose heads are a multiple of 16 wide, which native kernels ask for."""

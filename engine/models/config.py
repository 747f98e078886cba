"""The shape of a model, whichever file format described it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's frequency-dependent scaling (``rope_type: llama3``) or plain linear scaling."""

    kind: str
    """``llama3`` or ``linear``."""
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything a model family needs to build itself. Lengths are in elements."""

    family: str
    """Registry key: ``llama``, ``mistral``, ``qwen2``, ``qwen3`` or ``gemma3``."""
    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    """Of full-attention layers; sliding layers with a ``local_rope_theta`` are never scaled."""
    rope_frequency_factors: tuple[float, ...] | None = None
    """GGUF's exact form of llama3 scaling: head_dim / 2 numbers that divide the inverse frequencies."""
    local_rope_theta: float | None = None
    """Rope base of the sliding layers where it differs (Gemma 3)."""
    sliding_window: int | None = None
    """A query sees at most this many tokens, itself included, in sliding layers."""
    sliding_layers: tuple[bool, ...] = ()
    """For each layer, whether it slides; empty means none does."""
    tie_word_embeddings: bool = False
    attention_scale: float = 0.0
    """Multiplies q.k; the loader fills 1/sqrt(head_dim) unless the model says otherwise."""
    hidden_activation: str = "silu"
    """``silu`` or ``gelu_tanh``."""
    qkv_bias: bool = False
    output_bias: bool = False
    """Bias on the attention output projection."""
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

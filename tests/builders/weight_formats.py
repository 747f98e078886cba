"""What SmolLM2 loses by quantisation: the text it is measured on, the measure, and the model in floats."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from engine.models.decoder import DecoderModel
from engine.stored_tensor import StoredTensor
from engine.weights.checkpoint import Checkpoint
from engine.weights.source import resolve
from server.text.tokenizer import load_tokenizer
from tests.builders.paged_model import PagedModel

TOKENS, CHUNK, DECODED = 240, 90, 20


def text_tokens() -> list[int]:
    """Of an English text."""
    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    return list(load_tokenizer(resolve("smollm2-135m-instruct")).encode(text))[:TOKENS]


def log_probabilities(model: DecoderModel) -> Tensor:
    """After each of the tokens, the last ones decoded one by one: [tokens, vocab]."""
    paged, tokens, end = PagedModel(model), text_tokens(), TOKENS - DECODED
    parts = [paged.all_logits(tokens[first : min(first + CHUNK, end)]) for first in range(0, end, CHUNK)]
    parts += [paged.all_logits([token]) for token in tokens[end:]]
    return torch.cat(parts).log_softmax(-1)


def loss(exact: Tensor, found: Tensor) -> tuple[float, float]:
    """Mean nats of Kullback-Leibler divergence, and the share of tokens with the same likeliest successor."""
    divergence = (exact.exp() * (exact - found)).sum(-1).mean().item()
    return divergence, (found.argmax(-1) == exact.argmax(-1)).float().mean().item()


class FloatModel:
    """SmolLM2 as a float checkpoint: its numbers, taken off the grid of Q4_1, where quantising them again
    would lose nothing.

    Every channel between a norm and what follows, between values and output, and between up and down gets a
    factor on one side and its inverse on the other, so that the model computes the same.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        config = checkpoint.config
        generator = torch.Generator().manual_seed(0)

        def factors(channels: int) -> Tensor:
            return torch.exp2(torch.rand(channels, generator=generator) - 0.5)

        self._attention, self._mlp = factors(config.hidden_size), factors(config.hidden_size)
        self._up, self._value = (
            factors(config.intermediate_size),
            factors(config.num_kv_heads * config.head_dim),
        )
        heads = self._value.view(config.num_kv_heads, config.head_dim)
        self._attended = heads.repeat_interleave(config.num_heads // config.num_kv_heads, 0).flatten()

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        """See ``Checkpoint``."""
        values = self._checkpoint.load(name, torch.float32)
        match name.split(".")[-2]:
            case "input_layernorm":
                values /= self._attention
            case "post_attention_layernorm":
                values /= self._mlp
            case "q_proj" | "k_proj":
                values *= self._attention
            case "v_proj":
                values *= self._attention / self._value[:, None]
            case "o_proj":
                values *= self._attended
            case "gate_proj":
                values *= self._mlp
            case "up_proj":
                values *= self._mlp / self._up[:, None]
            case "down_proj":
                values *= self._up
        return values.to(dtype)

    def stored(self, name: str) -> StoredTensor | None:
        """None: these numbers are in no file."""
        return None

"""From a batch to the logits that are sampled from."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.attention.base import AttentionBackend
from engine.batch import Batch
from engine.kv_storage import KVStorage
from engine.models.decoder import DecoderModel


class ModelRunner:
    """Runs all layers over a batch, attention in one place."""

    def __init__(self, model: DecoderModel, storage: KVStorage, attention: AttentionBackend) -> None:
        """``attention`` works on the pages of ``storage``."""
        self.model = model
        self.storage = storage
        self._attention = attention

    def run(self, batch: Batch) -> Tensor:
        """Compute the batch, leaving its keys and values in the pages.

        Returns:
            float32 logits of ``batch.sample_rows``, [sampled rows, vocab].
        """
        with torch.inference_mode():
            return self._run(batch)

    def _run(self, batch: Batch) -> Tensor:
        plan = self._attention.plan(batch)
        rotations = self.model.rotations(batch.positions)
        hidden = self.model.embed(batch.token_ids)
        last = len(self.model.layers) - 1
        for index, layer in enumerate(self.model.layers):
            q, kv, residual = layer.pre_attention(hidden, rotations)
            plan.append(index, kv)
            if index == last:
                break
            hidden = layer.post_attention(plan.attend(index, q), residual)
        if not len(batch.sample_rows):
            return hidden.new_empty(0, self.model.config.vocab_size, dtype=torch.float32)
        # What follows the last append serves the logits alone: no other rows need it.
        attended = plan.attend(last, q)[batch.sample_rows]
        return self.model.logits(
            self.model.layers[last].post_attention(attended, residual[batch.sample_rows])
        )

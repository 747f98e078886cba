"""A batch through the model in one native call, the engine's one path on a CPU with native kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.attention.native import NativeAttention
from engine.batch import Batch
from engine.kernels.loader import Kernels
from engine.kv_storage import KVStorage
from engine.models.decoder import DecoderModel
from engine.native_step import native_step


class NativeRunner:
    """Does what ``ModelRunner`` does, and is compared with it. One batch at a time."""

    def __init__(self, model: DecoderModel, storage: KVStorage, kernels: Kernels) -> None:
        """Takes what it needs of ``model``: nothing but native matrices stays in memory for it.

        Raises:
            NotNativeError: a part of the model is not native.
            ValueError: attention's kernels don't know the model's shape.
        """
        self.storage = storage
        self._vocab_size = model.config.vocab_size
        self._attention = NativeAttention(model.config, storage, torch.float32, kernels)
        self._step = native_step(model.parts, kernels)

    def run(self, batch: Batch) -> Tensor:
        """Compute the batch, leaving its keys and values in the pages.

        Returns:
            float32 logits of ``batch.sample_rows``, [sampled rows, vocab].
        """
        plan = self._attention.plan(batch)
        logits = torch.empty(len(batch.sample_rows), self._vocab_size)
        self._step.run(
            plan.native_plan,
            len(batch.token_ids),
            batch.token_ids.data_ptr(),
            batch.positions.data_ptr(),
            len(batch.sample_rows),
            batch.sample_rows.data_ptr(),
            logits.data_ptr(),
        )
        return logits

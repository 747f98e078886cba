"""What computes a batch on the CPU, and which of the two that can is taken."""

from __future__ import annotations

import logging
from typing import Protocol

from torch import Tensor

from engine.attention.choice import host_attention
from engine.batch import Batch
from engine.kernels.loader import Kernels
from engine.kv_storage import KVStorage
from engine.model_runner import ModelRunner
from engine.models.decoder import DecoderModel
from engine.native_runner import NativeRunner
from engine.native_step import NotNativeError

logger = logging.getLogger(__name__)


class Runner(Protocol):
    """Runs all layers over a batch, keys and values in one storage."""

    @property
    def storage(self) -> KVStorage:
        """The pages."""

    def run(self, batch: Batch) -> Tensor:
        """Compute the batch, leaving its keys and values in the pages.

        Returns:
            float32 logits of ``batch.sample_rows``, [sampled rows, vocab].
        """


def make_runner(model: DecoderModel, storage: KVStorage, kernels: Kernels | None) -> Runner:
    """The native one, unless there are no kernels or they don't know a part of the model, which is logged."""
    if kernels is not None:
        try:
            return NativeRunner(model, storage, kernels)
        except (NotNativeError, ValueError) as error:
            logger.warning("layers are computed by torch, more slowly: %s", error)
    return ModelRunner(model, storage, host_attention(model.config, storage, model.dtype, kernels))

"""Which attention over host pages is used."""

from __future__ import annotations

import logging

import torch

from engine.attention.base import AttentionBackend
from engine.attention.host import HostAttention
from engine.attention.native import NativeAttention
from engine.kernels.loader import Kernels
from engine.kv_storage import KVStorage
from engine.models.config import ModelConfig

logger = logging.getLogger(__name__)


def host_attention(
    config: ModelConfig, storage: KVStorage, dtype: torch.dtype, kernels: Kernels | None
) -> AttentionBackend:
    """The native one, unless there are no kernels or they don't know the model's shape.

    Args:
        config: of the model.
        storage: holds its keys and values.
        dtype: the model computes in.
        kernels: None for torch.
    """
    if kernels is not None:
        try:
            return NativeAttention(config, storage, dtype, kernels)
        except ValueError as error:
            logger.warning("attention is computed by torch, more slowly: %s", error)
    return HostAttention(config, storage, dtype)

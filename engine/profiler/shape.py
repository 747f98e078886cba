"""What times depend on of a model."""

from __future__ import annotations

import msgspec

from engine.kv_storage import KVStorage
from engine.models.decoder import DecoderModel
from engine.models.layers import dtype_name
from engine.models.weight_facts import weight_facts
from scheduler.profile import ModelShape


def model_shape(model: DecoderModel, storage: KVStorage) -> ModelShape:
    """Of ``model`` with its keys and values in pages like those of ``storage``."""
    config = model.config
    shape = {
        "name": config.name,
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "page_size": storage.page_size,
        "dtype": dtype_name(model.dtype),
        "kv_dtype": dtype_name(storage.dtype),
        "weights": weight_facts(model.parts).formats,
    }
    return msgspec.convert(shape, ModelShape)

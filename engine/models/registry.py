"""Model families by the name ``ModelConfig.family`` gives them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from engine.model_error import ModelError
from engine.models.config import ModelConfig
from engine.models.decoder import DecoderModel
from engine.models.gemma3 import Gemma3Model
from engine.models.llama import LlamaModel
from engine.models.mistral import MistralModel
from engine.models.qwen2 import Qwen2Model
from engine.models.qwen3 import Qwen3Model

FAMILIES: Mapping[str, type[DecoderModel]] = MappingProxyType(
    {
        "llama": LlamaModel,
        "mistral": MistralModel,
        "qwen2": Qwen2Model,
        "qwen3": Qwen3Model,
        "gemma3": Gemma3Model,
    }
)


def model_class(config: ModelConfig) -> type[DecoderModel]:
    """The class that builds ``config``'s family.

    Raises:
        ModelError: the family is unknown.
    """
    if config.family not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ModelError(f"{config.name}: model family {config.family!r} is not supported; {known} are")
    return FAMILIES[config.family]


def parameters(config: ModelConfig) -> int:
    """Number of weights.

    Raises:
        ModelError: the family is unknown.
    """
    return model_class(config).parameters(config)


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor the model takes from its checkpoint.

    Raises:
        ModelError: the family is unknown.
    """
    return model_class(config).expected_tensors(config)

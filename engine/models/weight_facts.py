"""How a model's matrices are kept, in words and bytes."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import NamedTuple

from engine.models.embedding import Embedding
from engine.models.layers import LinearMap
from engine.models.parts import ModelParts


class WeightFacts(NamedTuple):
    """Of all matrices together."""

    formats: str
    """The one with most elements first."""
    nbytes: int


def weight_facts(parts: ModelParts) -> WeightFacts:
    """Of a loaded model; what two parts share counts once."""
    layers = [(layer.qkv, layer.output, layer.gate_up, layer.down) for layer in parts.layers]
    everything: list[LinearMap | Embedding] = [*chain.from_iterable(layers), parts.head, parts.embedding]
    held = {id(one.owner): one for one in (each.held for each in everything)}
    elements: Counter[str] = Counter()
    for one in held.values():
        elements.update(one.elements)
    formats = ", ".join(name for name, _ in elements.most_common())
    return WeightFacts(formats, sum(one.nbytes for one in held.values()))

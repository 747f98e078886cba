"""Makes metrics whose series are all there from the start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

Child = TypeVar("Child")

PREFIX = "tandem_"


class Families:
    """Counters, gauges and histograms of one registry. Labels are given as name and all values it can have.

    Each method returns a function from one combination of values to its series.

    Args:
        registry: where they are exported.
        model_name: value of the label that all of them have.
    """

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._registry = registry
        self._model_name = model_name

    def counter(self, name: str, text: str, **labels: Sequence[str]) -> Callable[..., Counter]:
        """A counter; ``name`` without the prefix."""
        metric = Counter(PREFIX + name, text, ("model_name", *labels), registry=self._registry)
        return self._bound(metric.labels, labels.values())

    def gauge(self, name: str, text: str, **labels: Sequence[str]) -> Callable[..., Gauge]:
        """A gauge."""
        metric = Gauge(PREFIX + name, text, ("model_name", *labels), registry=self._registry)
        return self._bound(metric.labels, labels.values())

    def histogram(
        self, name: str, text: str, buckets: Sequence[float], **labels: Sequence[str]
    ) -> Callable[..., Histogram]:
        """A histogram; ``buckets`` are upper bounds, to which infinity is added."""
        names = ("model_name", *labels)
        metric = Histogram(PREFIX + name, text, names, buckets=buckets, registry=self._registry)
        return self._bound(metric.labels, labels.values())

    def _bound(self, child: Callable[..., Child], values: Iterable[Sequence[str]]) -> Callable[..., Child]:
        children = {key: child(self._model_name, *key) for key in product(*values)}
        return lambda *key: children[key]

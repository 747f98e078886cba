"""The part of /metrics that is read off the engine client at the moment of a scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from server.engine_client.protocol import EngineClient
from server.metrics.registry import PREFIX


@dataclass(slots=True)
class LiveRequests:
    """Admitted requests that have not ended, counted by the server itself.

    The engine's own figures are those of its latest iteration, so they stand still when it idles.
    """

    without_output: int = 0
    with_output: int = 0


class EngineCollector(Collector):
    """Gauges of the engine's state and counters of its totals.

    Args:
        model_name: label of every metric.
        engine: read at each scrape.
        live: requests now.
        restarts: times the engine process was started again.
    """

    def __init__(
        self, model_name: str, engine: EngineClient, live: LiveRequests, restarts: Callable[[], int]
    ) -> None:
        self._model_name = model_name
        self._engine = engine
        self._live = live
        self._restarts = restarts

    def collect(self) -> Iterable[Metric]:
        """All metric families, each with its present value."""
        yield from self._requests()
        yield from self._pages()
        yield from self._totals()

    def _requests(self) -> Iterable[Metric]:
        stats = self._engine.stats
        prefilling = min(stats.sequences_prefilling if stats else 0, self._live.without_output)
        waiting = self._live.without_output - prefilling
        yield self._gauge("requests_running", "Requests that have got output", self._live.with_output)
        yield self._gauge("requests_waiting", "Requests waiting to be scheduled", waiting)
        yield self._gauge("requests_prefilling", "Requests whose prompt is being computed", prefilling)
        running, queued = (stats.sequences_running, stats.sequences_waiting) if stats else (0, 0)
        yield self._gauge("sequences_running", "Sequences that hold KV pages", running)
        yield self._gauge("sequences_waiting", "Sequences waiting for KV pages or for a place", queued)

    def _pages(self) -> Iterable[Metric]:
        facts, stats = self._engine.facts, self._engine.stats
        total = facts.host_kv_pages if facts else 0
        used = stats.host_pages_used if stats else 0
        cached = stats.host_pages_cached if stats else 0
        host = {"tier": "host"}
        yield self._gauge("kv_pages_total", "KV pages there are", total, host)
        yield self._gauge("kv_pages_used", "KV pages that live sequences hold", used, host)
        yield self._gauge("kv_pages_cached", "KV pages kept for their prefix only", cached, host)
        yield self._gauge("kv_usage_ratio", "KV pages used, of all", used / total if total else 0.0, host)

    def _totals(self) -> Iterable[Metric]:
        stats = self._engine.stats
        host = {"tier": "host"}
        queries, hits = (stats.prefix_queries_total, stats.prefix_hits_total) if stats else (0, 0)
        preempted = stats.preemptions_total if stats else 0
        recompute = {"kind": "recompute"}
        yield self._counter("preemptions", "Sequences that gave up their pages", preempted, recompute)
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up", queries, host)
        yield self._counter("prefix_cache_hits", "Prompt tokens found", hits, host)
        yield self._counter("engine_restarts", "Times the engine was started again", self._restarts())

    def _gauge(self, name: str, text: str, value: float, labels: dict[str, str] | None = None) -> Metric:
        labels = {"model_name": self._model_name, **(labels or {})}
        family = GaugeMetricFamily(PREFIX + name, text, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float, labels: dict[str, str] | None = None) -> Metric:
        labels = {"model_name": self._model_name, **(labels or {})}
        family = CounterMetricFamily(PREFIX + name, text, labels=list(labels))
        family.add_metric(list(labels.values()), value)
        return family

"""The part of /metrics that is read off the engine client at the moment of a scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from scheduler.tier import Tier
from server.engine_client.protocol import EngineClient
from server.metrics.families import PREFIX


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
        yield from self._weights()
        yield from self._requests()
        yield from self._sequences()
        yield from self._pages()
        yield from self._migrations()
        yield from self._totals()

    def _weights(self) -> Iterable[Metric]:
        held = self._engine.facts.weight_bytes if self._engine.facts else 0
        yield self._gauge("weight_bytes", "Memory that the model's matrices take", held)

    def _requests(self) -> Iterable[Metric]:
        stats = self._engine.stats
        prefilling = min(stats.sequences_prefilling if stats else 0, self._live.without_output)
        waiting = self._live.without_output - prefilling
        yield self._gauge("requests_running", "Requests that have got output", self._live.with_output)
        yield self._gauge("requests_waiting", "Requests waiting to be scheduled", waiting)
        yield self._gauge("requests_prefilling", "Requests whose prompt is being computed", prefilling)

    def _sequences(self) -> Iterable[Metric]:
        stats = self._engine.stats
        running, queued = (stats.sequences_running, stats.sequences_waiting) if stats else (0, 0)
        tiers = (stats.sequences_device, stats.sequences_host) if stats else (0, 0)
        host_rows = stats.host_rows if stats else 0
        yield self._gauge("sequences_running", "Sequences that hold KV pages", running)
        yield self._gauge("sequences_waiting", "Sequences waiting for KV pages or for a place", queued)
        yield self._by_tier("sequences_by_tier", "Sequences that hold KV pages, by where", *tiers)
        yield self._gauge("host_rows", "Sequences whose attention the CPU computes", host_rows)

    def _pages(self) -> Iterable[Metric]:
        facts, stats = self._engine.facts, self._engine.stats
        total = (facts.device_kv_pages, facts.host_kv_pages) if facts else (0, 0)
        used = (stats.device_pages_used, stats.host_pages_used) if stats else (0, 0)
        cached = (stats.device_pages_cached, stats.host_pages_cached) if stats else (0, 0)
        usage = [some / pages if pages else 0.0 for some, pages in zip(used, total, strict=True)]
        yield self._by_tier("kv_pages_total", "KV pages there are", *total)
        yield self._by_tier("kv_pages_used", "KV pages that live sequences hold", *used)
        yield self._by_tier("kv_pages_cached", "KV pages kept for their prefix only", *cached)
        yield self._by_tier("kv_usage_ratio", "KV pages used, of all", *usage)

    def _migrations(self) -> Iterable[Metric]:
        stats = self._engine.stats
        moves = (stats.migrations_in_total, stats.migrations_out_total) if stats else (0, 0)
        sizes = (stats.migration_bytes_in_total, stats.migration_bytes_out_total) if stats else (0, 0)
        yield self._by_direction("kv_migrations", "Moves of sequences to the other tier", *moves)
        yield self._by_direction("kv_migration_bytes", "Bytes of KV pages in these moves", *sizes)

    def _totals(self) -> Iterable[Metric]:
        stats = self._engine.stats
        queries, hits = (stats.prefix_queries_total, stats.prefix_hits_total) if stats else (0, 0)
        preempted = {"recompute": stats.preemptions_total if stats else 0}
        yield self._counter("preemptions", "Sequences that gave up their pages", preempted, "kind")
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up", queries)
        yield self._counter("prefix_cache_hits", "Prompt tokens found", hits)
        yield self._counter("engine_restarts", "Times the engine was started again", self._restarts())

    def _by_tier(self, name: str, text: str, device: float, host: float) -> Metric:
        return self._gauge(name, text, {Tier.DEVICE: device, Tier.HOST: host}, "tier")

    def _by_direction(self, name: str, text: str, to_device: float, to_host: float) -> Metric:
        return self._counter(name, text, {"to_device": to_device, "to_host": to_host}, "direction")

    def _gauge(self, name: str, text: str, value: float | Mapping[str, float], *label: str) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, text, labels=("model_name", *label))
        return self._filled(family, value)

    def _counter(self, name: str, text: str, value: float | Mapping[str, float], *label: str) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=("model_name", *label))
        return self._filled(family, value)

    def _filled(
        self, family: GaugeMetricFamily | CounterMetricFamily, value: float | Mapping[str, float]
    ) -> Metric:
        """``family`` with one value, or with one for each value of its further label."""
        if isinstance(value, Mapping):
            for label, one in value.items():
                family.add_metric((self._model_name, label), one)
        else:
            family.add_metric((self._model_name,), value)
        return family

"""What /metrics shows: one registry for each server, nothing global.

Names, labels and buckets are a contract with dashboards. Every label value a metric can have is there
from the start at 0, so that rates are defined from the first scrape on; no label holds client input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from scheduler.messages import SchedulerStats

Child = TypeVar("Child")

PREFIX = "tandem_"
ENDPOINTS = ("/v1/chat/completions", "/v1/completions")
ENDINGS = ("stop", "length", "abort", "error")
REJECTIONS = ("invalid", "too_large", "queue_full", "loading", "draining")
KINDS = ("prefill", "decode", "mixed")
PLAN_MODE = "cpu_only"

TTFT_BUCKETS = (
    *(0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75),
    *(1, 1.5, 2.5, 5, 7.5, 10, 20, 40, 80, 160),
)
TOKEN_BUCKETS = (
    *(0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10),
)
LATENCY_BUCKETS = (
    *(0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 60, 120, 240, 480, 960),
)
ITERATION_BUCKETS = (
    *(0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 1, 2),
)
COUNT_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Metrics:
    """The counters and histograms that events drive. Belongs to the event loop's thread.

    Args:
        model_name: the served model's name, a label of every metric but the HTTP ones.
    """

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.registry = CollectorRegistry()
        self._make_request_metrics()
        self._make_latency_metrics()
        self._make_iteration_metrics()
        self._make_http_metrics()

    def render(self, accept: str) -> tuple[bytes, str]:
        """The metrics in the format that an ``Accept`` header asks for, and its content type."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # the library's answer to a version that is no number
            encode, content_type = choose_encoder("")
        return encode(self.registry), content_type

    def observe_iteration(self, stats: SchedulerStats) -> None:
        """Account for one iteration of the engine that computed anything; to be told of each once."""
        if not stats.prefill_tokens and not stats.decode_tokens:
            return
        both = stats.prefill_tokens and stats.decode_tokens
        kind = "mixed" if both else "prefill" if stats.prefill_tokens else "decode"
        self.iterations(PLAN_MODE, kind).inc()
        self.iteration_seconds(PLAN_MODE, kind).observe(stats.iteration_seconds)
        self.batch_tokens(kind).observe(stats.prefill_tokens + stats.decode_tokens)

    def _make_request_metrics(self) -> None:
        counter, histogram = self._counter, self._histogram
        self.received = counter("requests_received_total", "HTTP requests to generate", endpoint=ENDPOINTS)
        self.finished = counter(
            "requests_finished_total",
            "Requests that ended once they were checked",
            endpoint=ENDPOINTS,
            reason=ENDINGS,
        )
        self.rejected = counter("requests_rejected_total", "Requests never admitted", reason=REJECTIONS)
        self.choices = counter("choices_finished_total", "Choices that ended", reason=ENDINGS)
        self.prompt_tokens = counter("prompt_tokens_total", "Prompt tokens of requests that got output")
        self.cached_tokens = counter(
            "prompt_tokens_cached_total", "Prompt tokens whose KV was in the prefix cache"
        )
        self.generation_tokens = counter("generation_tokens_total", "Tokens generated")
        self.request_prompt_tokens = histogram(
            "request_prompt_tokens", "Prompt tokens of a request", COUNT_BUCKETS
        )
        self.request_generation_tokens = histogram(
            "request_generation_tokens", "Tokens generated for a request", COUNT_BUCKETS
        )

    def _make_latency_metrics(self) -> None:
        histogram = self._histogram
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds",
            "From the request's arrival to its first token",
            TTFT_BUCKETS,
            streaming=("false", "true"),
        )
        self.inter_token_latency = histogram(
            "inter_token_latency_seconds", "Between two tokens of a choice", TOKEN_BUCKETS
        )
        self.time_per_output_token = histogram(
            "time_per_output_token_seconds", "A request's mean time between tokens", TOKEN_BUCKETS
        )
        self.latency = histogram(
            "e2e_request_latency_seconds", "From the request's arrival to its end", LATENCY_BUCKETS
        )

    def _make_iteration_metrics(self) -> None:
        self.iterations = self._counter(
            "iterations_total", "Iterations of the engine", plan_mode=(PLAN_MODE,), kind=KINDS
        )
        self.iteration_seconds = self._histogram(
            "iteration_seconds",
            "Time of one iteration",
            ITERATION_BUCKETS,
            plan_mode=(PLAN_MODE,),
            kind=KINDS,
        )
        self.batch_tokens = self._histogram(
            "batch_tokens", "Tokens computed in one iteration", BATCH_BUCKETS, kind=KINDS
        )

    def _make_http_metrics(self) -> None:
        """These exist for each combination that was seen; endpoint, method and status are closed sets."""
        names = ("endpoint", "method", "status")
        self.http_requests = Counter(
            f"{PREFIX}http_requests_total", "HTTP requests answered", names, registry=self.registry
        )
        self.http_seconds = Histogram(
            f"{PREFIX}http_request_duration_seconds",
            "From a request's arrival to the end of its response",
            names,
            buckets=LATENCY_BUCKETS,
            registry=self.registry,
        )
        self.http_in_flight = Gauge(
            f"{PREFIX}http_requests_in_flight", "HTTP requests being answered", registry=self.registry
        )

    def _counter(self, name: str, help_text: str, **labels: Sequence[str]) -> Callable[..., Counter]:
        metric = Counter(PREFIX + name, help_text, ("model_name", *labels), registry=self.registry)
        return self._bound(metric.labels, labels.values())

    def _histogram(
        self, name: str, help_text: str, buckets: Sequence[float], **labels: Sequence[str]
    ) -> Callable[..., Histogram]:
        names = ("model_name", *labels)
        metric = Histogram(PREFIX + name, help_text, names, buckets=buckets, registry=self.registry)
        return self._bound(metric.labels, labels.values())

    def _bound(self, child: Callable[..., Child], values: Iterable[Sequence[str]]) -> Callable[..., Child]:
        """Creates the children for every combination of label values; called with one, gives its child."""
        children = {key: child(self.model_name, *key) for key in product(*values)}
        return lambda *key: children[key]

"""What /metrics shows: one registry for each server, nothing global.

Names, labels and buckets are a contract with dashboards. Every label value a metric can have is there
from the start at 0, so that rates are defined from the first scrape on; no label holds client input.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from scheduler.messages import SchedulerStats
from scheduler.tier import Tier
from server.metrics.families import PREFIX, Families
from server.metrics.iteration_metrics import IterationMetrics

ENDPOINTS = ("/v1/chat/completions", "/v1/completions")
ENDINGS = ("stop", "length", "abort", "error", "timeout")
REJECTIONS = ("invalid", "too_large", "queue_full", "queue_timeout", "rate_limit", "loading", "draining")
CPU = "cpu"
"""In place of a tier where there is no accelerator."""
TIERS = (CPU, *Tier)
"""Where a token was computed."""
MIXED = "mixed"
"""In place of a tier for a request whose tokens were computed in several."""

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
COUNT_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)


class Metrics:
    """The counters and histograms that events drive. Belongs to the event loop's thread.

    Args:
        model_name: the served model's name, a label of every metric but the HTTP ones.
    """

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.registry = CollectorRegistry()
        families = Families(self.registry, model_name)
        self._make_request_metrics(families)
        self._make_latency_metrics(families)
        self._iterations = IterationMetrics(families)
        self._make_http_metrics()

    def render(self, accept: str) -> tuple[bytes, str]:
        """The metrics in the format that an ``Accept`` header asks for, and its content type."""
        try:
            encode, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # the library's answer to a version that is no number
            encode, content_type = choose_encoder("")
        return encode(self.registry), content_type

    def observe_iteration(self, stats: SchedulerStats) -> None:
        """Account for one iteration of the engine; to be told of each once."""
        self._iterations.observe(stats)

    def _make_request_metrics(self, families: Families) -> None:
        counter, histogram = families.counter, families.histogram
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

    def _make_latency_metrics(self, families: Families) -> None:
        histogram = families.histogram
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds",
            "From the request's arrival to its first token",
            TTFT_BUCKETS,
            streaming=("false", "true"),
            tier=TIERS,
        )
        self.inter_token_latency = histogram(
            "inter_token_latency_seconds", "Between two tokens of a choice", TOKEN_BUCKETS, tier=TIERS
        )
        self.time_per_output_token = histogram(
            "time_per_output_token_seconds",
            "A request's mean time between tokens",
            TOKEN_BUCKETS,
            tier=(*TIERS, MIXED),
        )
        self.stage_seconds = {
            stage: histogram(f"{stage}_time_seconds", text, LATENCY_BUCKETS)
            for stage, text in (
                ("queue", "From a request's arrival until the engine begins with it"),
                ("prefill", "From there to its first token"),
                ("decode", "From there to its last token"),
            )
        }
        self.latency = histogram(
            "e2e_request_latency_seconds", "From the request's arrival to its end", LATENCY_BUCKETS
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

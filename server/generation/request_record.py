"""The figures of one admitted request: the only way a request's tokens and times reach the metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from scheduler.tier import Tier
from server.http.exchange import Exchange
from server.metrics.engine_metrics import LiveRequests
from server.metrics.registry import CPU, ENDINGS, MIXED, Metrics

STAGES = ("queue", "prefill", "decode")


@dataclass(slots=True)
class RequestRecord:
    """Follows a request from its admission to its single ending. Times are monotonic seconds."""

    metrics: Metrics
    live: LiveRequests
    clock: Callable[[], float]
    exchange: Exchange
    endpoint: str
    streaming: bool
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    scheduled_at: float | None = None
    """When the engine began with it."""
    first_token_at: float | None = None
    last_token_at: dict[int, float] = field(default_factory=dict)
    """By choice."""
    tokens: dict[int, int] = field(default_factory=dict)
    """Generated, by choice."""
    plan_mode: Callable[[], str | None] = lambda: None
    """How the engine's latest iteration was planned."""
    plan_modes: set[str] = field(default_factory=set)
    """How the iterations were planned that brought its tokens, where there is an accelerator."""
    tiers: set[str] = field(default_factory=set)
    """Where its tokens were computed."""

    def stages(self) -> dict[str, float]:
        """Seconds of what is over: until the engine began, until the first token, until the last."""
        begun = self.scheduled_at
        times = [self.exchange.arrived_at, begun, self.first_token_at]
        times.append(max(self.last_token_at.values(), default=None))
        seconds = {}
        for stage, start, end in zip(STAGES, times, times[1:], strict=False):
            if start is not None and end is not None:
                seconds[stage] = max(end - start, 0.0)
        return seconds

    def admitted(self) -> None:
        """The engine has taken the request."""
        self.live.without_output += 1

    def elapsed(self) -> float:
        """Seconds since its arrival."""
        return self.clock() - self.exchange.arrived_at

    def scheduled(self, at: float) -> None:
        """The engine began with one of its choices."""
        if self.scheduled_at is None:
            self.scheduled_at = at

    def prompt_computed(self, tokens: int, cached: int) -> None:
        """The first output of one prompt came: so many tokens, so many of them from the prefix cache."""
        self.prompt_tokens += tokens
        self.cached_tokens += cached
        self.metrics.prompt_tokens().inc(tokens)
        self.metrics.cached_tokens().inc(cached)

    def tokens_generated(self, choice: int, count: int, tier: Tier | None) -> None:
        """A choice got ``count`` more tokens, computed in ``tier``; None where there is no accelerator.

        Several that came together share the time since the last.
        """
        if not count:
            return
        now = self.clock()
        where = CPU if tier is None else tier
        self.tiers.add(where)
        if tier is not None and (mode := self.plan_mode()) is not None:
            self.plan_modes.add(mode)
        if self.first_token_at is None:
            self._first_token(now, where)
        previous = self.last_token_at.get(choice)
        if previous is not None:
            latency = self.metrics.inter_token_latency(where)
            for _ in range(count):
                latency.observe((now - previous) / count)
        self.last_token_at[choice] = now
        self.tokens[choice] = self.tokens.get(choice, 0) + count
        self.generated_tokens += count
        self.metrics.generation_tokens().inc(count)

    def choice_finished(self, reason: str) -> None:
        """One choice ended."""
        self.metrics.choices(reason).inc()

    def finished(self, reason: str) -> None:
        """The request ended, whichever way."""
        if self.first_token_at is None:
            self.live.without_output -= 1
        else:
            self.live.with_output -= 1
            self._observe_pace(self.first_token_at)
        metrics = self.metrics
        if reason in ENDINGS:
            metrics.finished(self.endpoint, reason).inc()
        else:
            metrics.rejected(reason).inc()
        metrics.latency().observe(self.clock() - self.exchange.arrived_at)
        for stage, seconds in self.stages().items():
            metrics.stage_seconds[stage]().observe(seconds)
        metrics.request_prompt_tokens().observe(self.prompt_tokens)
        metrics.request_generation_tokens().observe(self.generated_tokens)
        self._note(reason)

    def _first_token(self, now: float, tier: str) -> None:
        self.first_token_at = now
        self.live.without_output -= 1
        self.live.with_output += 1
        streaming = "true" if self.streaming else "false"
        self.metrics.time_to_first_token(streaming, tier).observe(now - self.exchange.arrived_at)

    def _observe_pace(self, first: float) -> None:
        longest = max(self.tokens.values())
        if longest > 1:
            seconds = max(self.last_token_at.values()) - first
            tier = next(iter(self.tiers)) if len(self.tiers) == 1 else MIXED
            self.metrics.time_per_output_token(tier).observe(seconds / (longest - 1))

    def _note(self, reason: str) -> None:
        notes = self.exchange.notes
        notes |= {"prompt": self.prompt_tokens, "cached": self.cached_tokens, "output": self.generated_tokens}
        notes |= {f"{stage}_ms": round(1000 * seconds, 1) for stage, seconds in self.stages().items()}
        if self.first_token_at is not None:
            notes["ttft_ms"] = round(1000 * (self.first_token_at - self.exchange.arrived_at), 1)
        if self.plan_modes:
            notes["plan_modes"] = "+".join(sorted(self.plan_modes))
        notes["reason"] = reason

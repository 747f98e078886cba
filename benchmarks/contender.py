"""What can be measured, and what comes of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of load: ``streams`` answers at once."""

    streams: int
    prompt_tokens: int
    output_tokens: int

    @property
    def is_prefill(self) -> bool:
        """Whether it measures prompts: the answer has a single token."""
        return self.output_tokens == 1

    @property
    def label(self) -> str:
        """For the table."""
        if self.is_prefill:
            return f"prefill {self.prompt_tokens}"
        return f"{self.streams} x {self.prompt_tokens} in, {self.output_tokens} out"


@dataclass(frozen=True, slots=True)
class Latency:
    """Of one measurement, in seconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency:
        """Nearest-rank quantiles of at least one value."""
        ranked = sorted(seconds)
        return cls(*(ranked[max(math.ceil(share * len(ranked)) - 1, 0)] for share in (0.5, 0.99)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One measurement; rates are tokens per second over all streams."""

    decode: float | None
    """While all streams were decoding; None in a prefill case."""
    output: float
    """Over the whole run, prefill included."""
    prefill: float | None
    ttft: Latency
    """Time to first token."""
    inter_token: Latency | None
    """Time between tokens of one stream; None in a prefill case."""


class Contender(Protocol):
    """An engine that is loaded and uses no CPU while it isn't asked."""

    @property
    def name(self) -> str:
        """For the table."""

    @property
    def dtype(self) -> str:
        """Compute type."""

    def measure(self, case: Case, seed: int) -> Figures:
        """Run one case on prompts drawn from ``seed``."""

    def close(self) -> None:
        """Give memory and processes back."""


class BenchmarkError(Exception):
    """A contender can't be measured; says why."""

"""The loads, by name, and what a server must have room for to take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from benchmarks.contender import Case

LOADS: Mapping[str, Case] = MappingProxyType(
    {
        "prefill": Case(1, 512, 1),
        **{str(streams): Case(streams, 128, 128) for streams in (1, 4, 16, 32, 64)},
        "long": Case(8, 4000, 64),
    }
)

_LONG = 2000
"""A prompt of more tokens gets a server of its own: one that divides its memory among slots beforehand
would not have enough for it in the many slots that short ones need."""
_SLACK = 1.25
"""The load client finds the right number of words by sending prompts that are too long at first."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a server is started for."""

    streams: int
    context: int
    """Tokens of one stream, prompt and answer."""

    @classmethod
    def for_cases(cls, cases: Iterable[Case]) -> Room:
        """Enough for each of them, one at a time."""
        cases = list(cases)
        longest = max(case.prompt_tokens + case.output_tokens for case in cases)
        return cls(max(case.streams for case in cases), -(-int(longest * _SLACK) // 256) * 256)


def groups(cases: Sequence[Case]) -> list[list[Case]]:
    """The cases that one start of a server serves: short ones together, long ones together."""
    short = [case for case in cases if case.prompt_tokens <= _LONG]
    long = [case for case in cases if case.prompt_tokens > _LONG]
    return [group for group in (short, long) if group]

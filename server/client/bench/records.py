"""What became of one request, and how its tokens are spread over the frames that brought them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """Text that arrived at once."""

    time: float
    """Seconds on the client's clock."""
    tokens: int
    """At least 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request, sent and answered or failed. Times are seconds on the client's clock."""

    started: float
    finished: float
    frames: tuple[Frame, ...] = ()
    """Empty for a failed request: half an answer is no throughput."""
    last_token: float = 0.0
    """When the finish reason arrived: last tokens may have no text (special tokens) and so no frame."""
    prompt_tokens: int | None = None
    """None if the server reports no usage."""
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str = ""
    """What the failure is counted under (``503``, ``timeout``, ...); empty for a whole answer."""
    detail: str = ""
    """The server's own words on the failure."""

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token; None if the answer has no text."""
        return self.frames[0].time - self.started if self.frames else None


def spread(tokens: int, weights: Sequence[int]) -> list[int]:
    """Divide ``tokens`` over frames in proportion to ``weights``, their lengths in characters.

    Servers join tokens that are ready together into one frame, and don't say how many there were.
    The parts are whole and add up to ``tokens``; a frame may get none.
    """
    total = sum(weights)
    parts, given, cumulated = [], 0, 0
    for weight in weights:
        cumulated += weight
        parts.append(round(tokens * cumulated / total) - given)
        given += parts[-1]
    return parts


def frames_of(arrivals: Sequence[tuple[float, int]], tokens: int) -> tuple[Frame, ...]:
    """Frames with their tokens.

    Args:
        arrivals: (time, length of the text) of each frame with text, in order.
        tokens: output tokens of the whole answer, as the server counts them.
    """
    if len(arrivals) == tokens:
        return tuple(Frame(time, 1) for time, _ in arrivals)
    parts = spread(tokens, [length for _, length in arrivals])
    return tuple(Frame(time, part) for (time, _), part in zip(arrivals, parts, strict=True) if part)

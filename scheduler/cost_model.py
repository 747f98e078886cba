"""Times of work on one machine and model, from a measured profile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from scheduler.work import Stage, Work

_OVER_ROWS = frozenset((Stage.DENSE, Stage.ENTRY, Stage.EXIT, Stage.HEAD))
_COPIES = frozenset((Stage.DOWNLOAD, Stage.UPLOAD))


class CostModel(Protocol):
    """All results in seconds; all of them grow, or stay, as their arguments grow. Nothing takes no time."""

    layers: int
    page_bytes: int
    """Of all layers."""
    row_bytes_down: int
    """A host row's q, k and v of one layer."""
    row_bytes_up: int
    """Its attention output of one layer."""
    launch: float
    """To hand over one operation."""
    overhead: float
    """Of an iteration, beside what its operations take."""

    def dense(self, rows: int) -> float:
        """From one layer's attention to the next one's."""

    def entry(self, rows: int) -> float:
        """The first layer up to its attention."""

    def exit(self, rows: int) -> float:
        """The last layer from its attention on."""

    def head(self, rows: int) -> float:
        """Last norm and vocabulary projection."""

    def device_decode(self, rows: int, tokens: int) -> float:
        """One layer's decode attention on the accelerator, over ``tokens`` in total."""

    def device_prefill(self, rows: int, context: int) -> float:
        """One layer's attention of a chunk of ``rows`` after ``context`` tokens, on the accelerator."""

    def host_prefill(self, rows: int, context: int) -> float:
        """The same over pages in host memory."""

    def host_attention(self, rows: int, tokens: int) -> float:
        """One layer's decode attention on the CPU, over ``tokens`` in total."""

    def download(self, size: int) -> float:
        """``size`` bytes from the accelerator, latency included."""

    def upload(self, size: int) -> float:
        """``size`` bytes to the accelerator, latency included."""

    def seconds(self, work: Work) -> float:
        """Whichever of these ``work`` is: stages and methods have the same names."""
        seconds: Callable[..., float] = getattr(self, work.stage)
        if work.stage in _OVER_ROWS:
            return seconds(work.rows)
        if work.stage in _COPIES:
            return seconds(work.bytes)
        return seconds(work.rows, work.tokens)

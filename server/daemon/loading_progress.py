"""What the terminal shows while a model is loaded."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from scheduler.messages import Loading

BAR_WIDTH = 30
LINE_INTERVAL = 3.0
"""Seconds between lines where the output is no terminal."""


class Output(Protocol):
    """Where progress goes."""

    def isatty(self) -> bool:
        """Whether somebody watches."""

    def write(self, text: str, /) -> object:
        """Take some of it."""

    def flush(self) -> None:
        """Show it."""


class LogLines:
    """Progress as lines of a log."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def isatty(self) -> bool:
        """Nobody redraws a log."""
        return False

    def write(self, text: str) -> None:
        """One line."""
        self._logger.info("%s", text.rstrip())

    def flush(self) -> None:
        """Nothing is held back."""


class LoadingProgress:
    """A bar that redraws itself on a terminal; elsewhere a line every few seconds, and a last one.

    Args:
        name: of the model.
        stream: where to write.
        clock: monotonic seconds.
    """

    def __init__(self, name: str, stream: Output, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._stream = stream
        self._clock = clock
        self._redraws = stream.isatty()
        self._shown_at: float | None = None

    def update(self, loading: Loading) -> None:
        """Show how far it is."""
        finished = loading.tensors_done == loading.tensors_total
        if self._redraws:
            # Clear to the end of the line: the one before may have been longer.
            self._stream.write(f"\r{self._describe(loading)}\x1b[K" + ("\n" if finished else ""))
            self._stream.flush()
        elif finished or self._is_due():
            self._stream.write(self._describe(loading) + "\n")
            self._stream.flush()

    def _is_due(self) -> bool:
        now = self._clock()
        if self._shown_at is not None and now - self._shown_at < LINE_INTERVAL:
            return False
        self._shown_at = now
        return True

    def _describe(self, loading: Loading) -> str:
        fraction = loading.bytes_done / loading.bytes_total if loading.bytes_total else 0.0
        bar = ""
        if self._redraws:
            filled = int(fraction * BAR_WIDTH)
            bar = "[" + "#" * filled + "." * (BAR_WIDTH - filled) + "] "
        return (
            f"Loading {self._name}: {bar}{100 * fraction:.0f} %, "
            f"{loading.bytes_done / 1e6:.0f} of {loading.bytes_total / 1e6:.0f} MB, "
            f"{loading.tensors_done} of {loading.tensors_total} tensors"
        )

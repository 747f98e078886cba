"""How one endpoint writes an answer, streamed or whole: what ``GenerationResponse`` calls, in this order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from server.generation.running import ChoiceDelta, Generation
from server.http.errors import ApiError


class Answer(ABC):
    """One answer. ``admitted``; then ``frames`` and ``ending``, or ``whole``; or else a failure."""

    def admitted(self) -> bytes:
        """The engine has taken the request. Frames to begin a stream with."""
        return b""

    @abstractmethod
    def frames(self, deltas: list[ChoiceDelta]) -> bytes:
        """Frames for what has come; none where there is nothing to see."""

    @abstractmethod
    def ending(self, generation: Generation) -> bytes:
        """Frames after the last choice's end."""

    @abstractmethod
    def whole(self, deltas: Sequence[Sequence[ChoiceDelta]], generation: Generation) -> dict[str, Any]:
        """The body, of all deltas of each choice."""

    @abstractmethod
    def broken_off(self, error: ApiError) -> bytes:
        """Frames for the end of a stream that failed after it had begun."""

    def failed(self, error: ApiError, deltas: Sequence[Sequence[ChoiceDelta]]) -> dict[str, Any] | None:
        """A body in spite of a failure after admission; None for an error with its status and object."""
        return None

    def abandoned(self) -> None:  # noqa: B027 - most need not know
        """The client has left."""

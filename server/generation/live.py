"""The requests that are being served now: to be looked at, and to be ended by others than their clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from server.generation.job import GenerationJob
from server.generation.request_record import RequestRecord
from server.generation.running import Generation
from server.http.errors import request_aborted
from server.http.keys import Key


@dataclass(frozen=True, slots=True, eq=False)
class LiveGeneration:
    """One of them."""

    job: GenerationJob
    record: RequestRecord
    generation: Generation

    @property
    def state(self) -> str:
        """How far it is."""
        if self.record.first_token_at is not None:
            return "decode"
        return "queued" if self.record.scheduled_at is None else "prefill"

    def is_named(self, name: str) -> bool:
        """Whether this is its answer's id or its ``X-Request-Id``."""
        return name in (self.job.response_id, self.record.exchange.request_id)


class LiveGenerations:
    """All of them, by arrival. Belongs to the event loop's thread."""

    def __init__(self) -> None:
        self._live: dict[LiveGeneration, None] = {}

    def __iter__(self) -> Iterator[LiveGeneration]:
        return iter(tuple(self._live))

    @contextmanager
    def listed(self, one: LiveGeneration) -> Iterator[None]:
        """Have a request among them while the context lasts."""
        self._live[one] = None
        try:
            yield
        finally:
            del self._live[one]

    def abort(self, name: str, key: Key | None) -> int:
        """End the requests of this name that came with this key.

        Returns:
            How many there were.
        """
        return self._end([one for one in self if one.is_named(name) and one.record.exchange.key == key])

    def abort_any(self, name: str | None) -> int:
        """End the requests of this name, whosever they are; without a name all.

        Returns:
            How many there were.
        """
        return self._end([one for one in self if name is None or one.is_named(name)])

    def _end(self, chosen: list[LiveGeneration]) -> int:
        for one in chosen:
            one.generation.cut(request_aborted())
        return len(chosen)

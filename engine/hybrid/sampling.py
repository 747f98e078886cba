"""Logits on their way to the host, and the tokens sampled from them there."""

from __future__ import annotations

from collections.abc import Sequence

from engine.devices.base import Buffer, Device, Event
from engine.sampling.native import NativeSampler
from engine.wanted_logits import Wanted, rows_of, tokens_and_scores
from scheduler.plan import SampledToken, ScoredTokens
from scheduler.work import Stage, Work


class Sampling:
    """One unit's logits. They come down by a copy, like all else."""

    def __init__(
        self, device: Device, logits: Buffer, unit: Event, wanted: Sequence[Wanted], vocabulary: int
    ) -> None:
        """``unit`` makes ``logits``, float32 [rows wanted, vocabulary]."""
        self.wanted = tuple(wanted)
        self._device = device
        self._arrived = Buffer(f"{logits.name} on the host")
        arrived = self._arrived

        def copy() -> None:
            (made,) = logits.get()
            arrived.set(device.pinned(tuple(made.shape), made.dtype).copy_(made, non_blocking=True))

        size = rows_of(self.wanted) * vocabulary * 4
        device.download.wait(unit)
        device.download.launch(
            copy, (Work(Stage.DOWNLOAD, bytes=size),), reads=(logits,), writes=(self._arrived,)
        )
        self._event = device.download.record()

    def ready(self) -> bool:
        """Whether the logits are here."""
        return self._event.query()

    def tokens(self, eos_token_ids: tuple[int, ...], native: NativeSampler | None) -> list[SampledToken]:
        """One for each who wants one; to be called once they are here."""
        return self.results(eos_token_ids, native)[0]

    def results(
        self, eos_token_ids: tuple[int, ...], native: NativeSampler | None
    ) -> tuple[list[SampledToken], list[ScoredTokens]]:
        """The tokens and the scores; to be called once they are here."""
        self._device.host_touches(reads=(self._arrived,))
        (logits,) = self._arrived.get()
        return tokens_and_scores(logits, self.wanted, eos_token_ids, native)

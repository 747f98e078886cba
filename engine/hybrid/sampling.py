"""Logits on their way to the host, and the tokens sampled from them there."""

from __future__ import annotations

from collections.abc import Sequence

from engine.devices.base import Buffer, Device, Event
from engine.sampled_tokens import sampled_tokens
from engine.sampling.native import NativeSampler
from scheduler.plan import SampledToken, SampleSpec
from scheduler.types import SequenceId
from scheduler.work import Stage, Work

Wanted = tuple[SequenceId, SampleSpec]


class Sampling:
    """One unit's logits. They come down by a copy, like all else."""

    def __init__(
        self, device: Device, logits: Buffer, unit: Event, wanted: Sequence[Wanted], vocabulary: int
    ) -> None:
        """``unit`` makes ``logits``, float32 [wanted, vocabulary]."""
        self.wanted = tuple(wanted)
        self._device = device
        self._arrived = Buffer(f"{logits.name} on the host")
        arrived = self._arrived

        def copy() -> None:
            (made,) = logits.get()
            arrived.set(device.pinned(tuple(made.shape), made.dtype).copy_(made, non_blocking=True))

        size = len(self.wanted) * vocabulary * 4
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
        self._device.host_touches(reads=(self._arrived,))
        (logits,) = self._arrived.get()
        return sampled_tokens(logits, self.wanted, eos_token_ids, native)

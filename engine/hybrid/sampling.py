"""Logits on their way to the host, and the tokens sampled from them there."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.devices.base import Buffer, Device, Event
from engine.sampler import NO_TOKEN, sample
from scheduler.plan import SampledToken, SampleSpec
from scheduler.types import SequenceId
from scheduler.work import Stage, Work

_NO_TOKEN_ERROR = "no token could be sampled: the logits were not finite, or every token was banned"

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

    def tokens(self, eos_token_ids: tuple[int, ...]) -> list[SampledToken]:
        """One for each who wants one; to be called once they are here."""
        self._device.host_touches(reads=(self._arrived,))
        (logits,) = self._arrived.get()
        return sampled_tokens(logits, self.wanted, eos_token_ids)


def sampled_tokens(
    logits: Tensor, wanted: Sequence[Wanted], eos_token_ids: tuple[int, ...]
) -> list[SampledToken]:
    """Sample from float32 ``logits`` [wanted, vocabulary]."""
    drawn = sample(logits, [spec for _sequence_id, spec in wanted], eos_token_ids)
    return [
        SampledToken(sequence_id, token, logprobs, _NO_TOKEN_ERROR if token == NO_TOKEN else "")
        for (sequence_id, _spec), (token, logprobs) in zip(wanted, drawn, strict=True)
    ]

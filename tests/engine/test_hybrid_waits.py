"""Every wait of the executor is needed: whichever is left out, the checked device finds it out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.devices.base import Event, Stream
from engine.devices.checked import CheckedDevice
from engine.devices.hazards import HazardError
from engine.models.decoder import DecoderModel
from tests.engine.hybrid_harness import OUTPUT, Harness, greedy_alone, make_executor

PROMPTS = [(5, 6, 7, 8, 9), (11, 12), (13,) * 9, (17, 18, 19), (23, 24, 25, 26), (29, 31, 37)]


class Forgetful:
    """A stream of which nobody waits for something."""

    def __init__(self, stream: Stream, *, waits: bool, events: bool) -> None:
        """Without ``waits`` it never waits; without ``events`` its events say at once that they came."""
        self._stream = stream
        self._waits = waits
        self._events = events
        self.launch = stream.launch

    def wait(self, event: Event) -> None:
        if self._waits:
            self._stream.wait(event)

    def record(self) -> Event:
        event = self._stream.record()
        return event if self._events else _Early()


class _Early:
    def query(self) -> bool:
        return True

    def passed_at(self) -> float | None:
        return None


def forgetful(name: str, **what: bool) -> Callable[[Any], None]:
    def forget(device: Any) -> None:
        setattr(device, name, Forgetful(getattr(device, name), **what))

    return forget


@pytest.mark.parametrize(
    "forget",
    [
        pytest.param(forgetful("download", waits=False, events=True), id="download for its unit"),
        pytest.param(forgetful("host", waits=False, events=True), id="attention for its input"),
        pytest.param(forgetful("host", waits=True, events=False), id="upload for the attention"),
        pytest.param(forgetful("compute", waits=False, events=True), id="unit for the upload"),
        pytest.param(forgetful("download", waits=True, events=False), id="sampling for the logits"),
    ],
)
def test_each_wait_is_missed(model: DecoderModel, forget: Callable[[Any], None]):
    device = CheckedDevice(seed=1)
    forget(device)
    with pytest.raises(HazardError):
        serve(model, device)


def test_with_all_of_them_nothing_is_found(model: DecoderModel):
    serve(model, CheckedDevice(seed=1))


def serve(model: DecoderModel, device: CheckedDevice) -> None:
    expected = {prompt: greedy_alone(model, list(prompt), OUTPUT) for prompt in PROMPTS}
    executor, tiers = make_executor(model, device, device_pages=20, host_pages=30)
    Harness(executor, tiers, expected, seed=1).run()
    executor.close()

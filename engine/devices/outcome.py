"""What became of a stream's operations."""

from __future__ import annotations

from types import TracebackType

from engine.devices.base import DeviceError


class Outcome:
    """Keeps the first exception of a stream, for whoever asks for an event after it.

    A context around every operation. Nothing is lost: the operation runs at a time, and mostly in a
    thread, in which there is nobody to tell.
    """

    __slots__ = ("failure",)

    def __init__(self) -> None:
        self.failure: BaseException | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.fail(error)
        return True

    def fail(self, error: BaseException | None) -> None:
        """Take over ``error``, if it is one and the first."""
        if self.failure is None:
            self.failure = error


def raise_failure(stream: str, failure: BaseException | None) -> None:
    """Tell the host.

    Raises:
        DeviceError: from ``failure``, unless that is None.
    """
    if failure is not None:
        raise DeviceError(f"{stream} stream: {type(failure).__name__}: {failure}") from failure

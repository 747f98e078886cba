"""Errors of the native tokenizer library as the project's own."""

from __future__ import annotations

from types import TracebackType

from engine.model_error import ModelError


class NativeErrors:
    """Context in which the ``tokenizers`` library's errors become ModelErrors that name the file.

    The library raises plain ``Exception`` for whatever is wrong with a vocabulary. Exactly that
    class is taken, so no other error is hidden.
    """

    def __init__(self, where: object) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is Exception:
            raise ModelError(f"{self._where}: not a usable tokenizer: {error}") from error

"""JSON files of a model, typed on reading."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from engine.model_error import ModelError

_T = TypeVar("_T")


def read_json(path: Path, type_: type[_T]) -> _T:
    """The file's content as ``type_`` (anything msgspec decodes).

    Raises:
        ModelError: the file can't be read, is no JSON or does not fit the type.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=type_)
    except OSError as error:
        raise ModelError(f"{path}: can't be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelError(f"{path}: {error}") from error


def convert_json(path: Path, value: object, type_: type[_T]) -> _T:
    """A part of an already decoded file as ``type_``; errors as in ``read_json``."""
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise ModelError(f"{path}: {error}") from error

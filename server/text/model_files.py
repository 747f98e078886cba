"""Reading the small JSON files of a Hugging Face model directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.model_error import ModelError


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no such file.

    Python's own dialect, since that is what writes these files: it knows ``Infinity``.

    Raises:
        ModelError: the file can't be read or holds no JSON object.
    """
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ModelError(f"{path}: can't be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object")
    return value

"""What MODEL means: a directory, a file, an installed package or a model on the hub.

Imports no torch: the server resolves MODEL too, for the tokenizer.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.model_error import ModelError
from engine.weights.model_packages import MODEL_PACKAGES, default_cache_dir, package_file

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_HUB_FILES = (
    "config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json",
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template*",
    "additional_chat_templates/*",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model on this machine."""

    kind: Literal["gguf", "huggingface"]
    path: Path
    """A .gguf file, or a directory with config.json."""
    short_name: str
    """What clients call it unless the user says otherwise."""


def resolve(model: str, cache_dir: Path | None = None) -> ModelSource:
    """Find MODEL; a path that exists wins over a short name, a short name over a hub id.

    Args:
        model: Hugging Face directory, .gguf file, short name of an installed model package, or hub
            id ``organisation/name``, which is downloaded unless it is in the hub's cache.
        cache_dir: where a model package in parts is assembled; default: ``default_cache_dir()``.

    Raises:
        ModelError: there is no such model; says what was tried.
    """
    path = Path(os.path.expanduser(model))  # noqa: PTH111 - Path's raises for an unknown ~user
    if model and os.path.lexists(path):
        try:
            return _local(path)
        except OSError as error:
            raise ModelError(f"{path}: can't be read: {error.strerror}") from error
    if model.lower() in MODEL_PACKAGES:
        short_name = model.lower()
        file = package_file(MODEL_PACKAGES[short_name], cache_dir or default_cache_dir())
        return ModelSource("gguf", file, short_name)
    if _HUB_ID.fullmatch(model) and not model.lower().endswith(".gguf"):
        return ModelSource("huggingface", _downloaded(model), model.rpartition("/")[2])
    raise ModelError(_not_found(model))


def _local(path: Path) -> ModelSource:
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - keeps a symbolic link's own name
    if path.is_dir():
        _require_config(path)
        return ModelSource("huggingface", path, absolute.name)
    if path.suffix.lower() != ".gguf":
        raise ModelError(f"{path}: is neither a directory nor a .gguf file")
    return ModelSource("gguf", path, absolute.stem)


def _require_config(directory: Path) -> None:
    if (directory / "config.json").is_file():
        return
    hint = next((f"; did you mean {file}?" for file in sorted(directory.glob("*.gguf"))), "")
    raise ModelError(f"{directory}: is no Hugging Face model, it has no config.json{hint}")


def _downloaded(hub_id: str) -> Path:
    # Imported here because only this way of naming a model needs it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import EntryNotFoundError, XetDownloadError

    try:
        directory = Path(snapshot_download(hub_id, allow_patterns=list(_HUB_FILES)))
    except (OSError, ValueError, EntryNotFoundError, XetDownloadError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"{hub_id!r} is no path here, and it can't be had from the Hugging Face hub: {reason}"
        ) from error
    _require_config(directory)
    return directory


def _not_found(model: str) -> str:
    close = difflib.get_close_matches(model.lower(), MODEL_PACKAGES, n=1, cutoff=0.4)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return (
        f"there is no model {model!r}: it is no file or directory, no known short name "
        f"({', '.join(MODEL_PACKAGES)}) and no hub id like 'organisation/name'{hint}"
    )

"""A Hugging Face directory (config.json and safetensors) as a Checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from engine.model_error import ModelError
from engine.models.config import ModelConfig
from engine.stored_tensor import StoredTensor
from engine.weights.huggingface_config import huggingface_model_config
from engine.weights.json_file import read_json

_INDEX = "model.safetensors.index.json"
_BYTES: Mapping[str, int] = MappingProxyType({"F32": 4, "F16": 2, "BF16": 2})
"""Supported element types, by safetensors' names."""

_LANGUAGE_PREFIXES = (("language_model.", ""), ("model.language_model.", "model."))
"""How multimodal models name their language part, before and since transformers 4.52."""
_VISION_PREFIXES = ("vision_tower.", "multi_modal_projector.")


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class _Slice(msgspec.Struct, frozen=True):
    """A tensor in one of the files."""

    file: Any
    """The open safetensors handle."""
    path: Path
    name: str
    """The file's own name for the tensor."""
    shape: tuple[int, ...]
    nbytes: int
    type_name: str
    """One of ``_BYTES``."""


class HuggingFaceCheckpoint:
    """A model directory, see ``checkpoint.Checkpoint``. No tensor is read before ``load``.

    Args:
        directory: holds config.json and model.safetensors, or shards and their index.
        name: of the model; default: the directory's name.

    Raises:
        ModelError: a file is missing, truncated or malformed, or the architecture or an element
            type is not supported.
    """

    def __init__(self, directory: Path, name: str | None = None) -> None:
        self._directory = directory
        self._config = huggingface_model_config(directory, name or directory.name)
        self._slices: dict[str, _Slice] = {}
        for path, wanted in _files(directory):
            self._open(path, wanted)

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        return self._config

    @property
    def names(self) -> frozenset[str]:
        """Tensor names, like ``model.layers.0.self_attn.q_proj.weight``."""
        return frozenset(self._slices)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape, [out, in] for a projection. Reads no data."""
        return self._find(name).shape

    def nbytes(self, name: str) -> int:
        """Bytes of the tensor in its file."""
        return self._find(name).nbytes

    def type_name(self, name: str) -> str:
        """Element type in the file."""
        return self._find(name).type_name

    def load(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """A copy of the tensor in ``dtype``, so that later changes to the file can't reach the model.

        Raises:
            ModelError: there is no such tensor.
        """
        found = self._find(name)
        values: torch.Tensor = found.file.get_tensor(found.name)
        return values.to(dtype, copy=True)

    def stored(self, name: str) -> StoredTensor:
        """The tensor in the mapped file: its bytes change if the file does.

        Raises:
            ModelError: there is no such tensor.
        """
        found = self._find(name)
        values: torch.Tensor = found.file.get_tensor(found.name)
        return StoredTensor(found.type_name, found.shape, values.data_ptr(), values, None)

    def _open(self, path: Path, wanted: frozenset[str] | None) -> None:
        """Take in the tensors of a file: all, or those that the index says are there."""
        try:
            file: Any = safe_open(path, framework="pt", device="cpu")  # checks header against file size
            present = frozenset(file.keys())
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path}: can't be read: {error}") from error
        missing = (wanted or frozenset()) - present
        if missing:
            raise ModelError(f"{path}: lacks tensor {min(missing)!r}, which {_INDEX} says it has")
        for name in present if wanted is None else wanted:
            renamed = _language_name(name)
            if renamed is not None:
                self._add(renamed, _slice(file, path, name))

    def _add(self, name: str, found: _Slice) -> None:
        if name in self._slices:
            raise ModelError(f"{found.path}: tensor {name!r} is there twice, under two names")
        self._slices[name] = found

    def _find(self, name: str) -> _Slice:
        if name not in self._slices:
            raise ModelError(f"{self._directory}: tensor {name!r} is missing")
        return self._slices[name]


def _slice(file: Any, path: Path, name: str) -> _Slice:  # noqa: ANN401 - safetensors has no public type
    header = file.get_slice(name)
    shape, dtype = tuple(header.get_shape()), header.get_dtype()
    if dtype not in _BYTES:
        raise ModelError(
            f"{path}: tensor {name!r} has type {dtype}, which is not supported; "
            f"supported: {', '.join(_BYTES)}"
        )
    return _Slice(file, path, name, shape, math.prod(shape) * _BYTES[dtype], dtype)


def _language_name(name: str) -> str | None:
    """The tensor's name in a language-only model, None for a part of the vision tower."""
    if name.removeprefix("model.").startswith(_VISION_PREFIXES):
        return None
    for prefix, replacement in _LANGUAGE_PREFIXES:
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def _files(directory: Path) -> Iterator[tuple[Path, frozenset[str] | None]]:
    """Each safetensors file with the names it must hold, None where there is no index to say so."""
    index_path = directory / _INDEX
    if not index_path.exists():
        yield _only_file(directory), None
        return
    weight_map = read_json(index_path, _Index).weight_map
    for file_name in sorted(set(weight_map.values())):
        if Path(file_name).name != file_name:
            raise ModelError(f"{index_path}: {file_name!r} is not a file of its directory")
        if not (directory / file_name).is_file():
            raise ModelError(f"{directory / file_name}: is missing, and {_INDEX} needs it")
        yield (
            directory / file_name,
            frozenset(name for name, file in weight_map.items() if file == file_name),
        )


def _only_file(directory: Path) -> Path:
    candidates = sorted(directory.glob("*.safetensors"))
    named = directory / "model.safetensors"
    if named in candidates or len(candidates) == 1:
        return named if named in candidates else candidates[0]
    if candidates:
        raise ModelError(f"{directory}: has {len(candidates)} safetensors files, but no {_INDEX}")
    if any(directory.glob("pytorch_model*.bin")):
        raise ModelError(
            f"{directory}: has only pytorch_model.bin, a pickle, which can run code when read; "
            "convert it to safetensors"
        )
    raise ModelError(f"{directory}: has no safetensors file")

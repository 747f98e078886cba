"""The GGUF reader: against gguf's own reader, and against damaged files."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFEndian

from engine.model_error import ModelError
from engine.weights import gguf_file
from engine.weights.gguf_file import GgufFile
from engine.weights.gguf_types import GGUF_TYPES
from tests.builders.gguf_files import key_value, raw_file, string, tensor_entry


def test_type_table_equals_ggufs() -> None:
    ours = {
        number: (type_.name, type_.block_elements, type_.block_bytes) for number, type_ in GGUF_TYPES.items()
    }
    assert ours == {type_.value: (type_.name, *GGML_QUANT_SIZES[type_]) for type_ in GGMLQuantizationType}


def test_metadata_and_directory_equal_what_gguf_wrote(tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    scalars = {
        "uint8": 200, "int8": -5, "uint16": 60_000, "int16": -30_000, "uint32": 2**32 - 1, "int32": -(2**31),
        "uint64": 2**64 - 1, "int64": -(2**63), "float32": 0.5, "float64": 1e300, "bool": True,
        "string": "Ġ naïve 日本 \0 <|x|>",
    }  # fmt: skip
    for kind, value in scalars.items():
        getattr(writer, f"add_{kind}")(f"test.{kind}", value)
    arrays = {"strings": ["", "a", "日本"], "ints": [1, -2], "floats": [0.25, 8.0], "bools": [True, False]}
    for name, values in arrays.items():
        writer.add_array(f"test.{name}", values)
    tensors = {
        "plain": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": np.ones((3, 2, 5), dtype=np.float16),
        "vector": np.arange(7, dtype=np.float32),
    }
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    blocks = np.arange(4 * 2 * 18, dtype=np.uint8).reshape(4, 36)
    writer.add_tensor("blocks", blocks, raw_dtype=GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = GgufFile(path)

    expected = {f"test.{key}": value for key, value in (scalars | arrays).items()}
    assert file.metadata == {"general.architecture": "llama", **expected}
    assert all(type(file.metadata[key]) is type(value) for key, value in expected.items())
    reader = gguf.GGUFReader(path)
    assert set(file.tensors) == {tensor.name for tensor in reader.tensors} == {*tensors, "blocks"}
    for theirs in reader.tensors:
        ours = file.tensors[theirs.name]
        assert (ours.offset, ours.nbytes) == (theirs.data_offset, theirs.n_bytes)
        assert ours.shape == tuple(int(size) for size in reversed(theirs.shape))
        assert ours.type.name == theirs.tensor_type.name
        assert bytes(file.data(ours)) == theirs.data.tobytes()
    assert file.tensors["blocks"].shape == (4, 64)


def test_alignment_other_than_the_default(tmp_path: Path) -> None:
    path = tmp_path / "aligned.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(256)
    writer.add_tensor("a", np.arange(3, dtype=np.float32))
    writer.add_tensor("b", np.arange(5, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(path)
    assert file.tensors["b"].offset - file.tensors["a"].offset == 256
    assert list(file.data(file.tensors["b"]).cast("f")) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("version", [2, 3])
def test_supported_versions(tmp_path: Path, version: int) -> None:
    path = tmp_path / "v.gguf"
    path.write_bytes(raw_file([key_value("k", 8, string("v"))], version=version))
    assert GgufFile(path).metadata == {"k": "v"}


def test_nested_arrays(tmp_path: Path) -> None:
    inner = struct.pack("<IQ", 4, 2) + struct.pack("<II", 7, 8)
    outer = struct.pack("<IQ", 9, 2) + inner + inner
    path = tmp_path / "nested.gguf"
    path.write_bytes(raw_file([key_value("k", 9, outer)]))
    assert GgufFile(path).metadata["k"] == [[7, 8], [7, 8]]


F32 = (0).to_bytes(4, "little")
ONE = tensor_entry("t", [8])
DEEP = struct.pack("<IQ", 9, 1) * 5 + struct.pack("<IQ", 4, 0)
DAMAGED = {
    "empty": (b"", "can't be read"),
    "other magic": (raw_file(magic=b"GGML"), "is not a GGUF file"),
    "magic alone": (b"GGUF", "truncated"),
    "version 1": (raw_file(version=1), "version 1"),
    "version 4": (raw_file(version=4), "version 4"),
    "no counts": (raw_file()[:12], "truncated"),
    "absurd key count": (raw_file(key_count=2**63), "can't hold 9223372036854775808 metadata keys"),
    "absurd tensor count": (raw_file(tensor_count=2**40), "can't hold 1099511627776 tensors"),
    "absurd string length": (raw_file([struct.pack("<Q", 2**63)]), "truncated"),
    "absurd array length": (
        raw_file([key_value("k", 9, struct.pack("<IQ", 4, 2**62))]),
        "can't hold 4611686018427387904 array elements",
    ),
    "absurd string array": (raw_file([key_value("k", 9, struct.pack("<IQ", 8, 2**50))]), "can't hold"),
    "arrays too deep": (raw_file([key_value("k", 9, DEEP)]), "nested too deeply"),
    "value of unknown type": (raw_file([key_value("k", 13, b"")]), "unknown type 13"),
    "elements of unknown type": (raw_file([key_value("k", 9, struct.pack("<IQ", 99, 0))]), "unknown type 99"),
    "key twice": (raw_file([key_value("k", 7, b"\1")] * 2), "'k' twice"),
    "key not UTF-8": (raw_file([string(b"\xff\xfe") + F32 + b"\0"]), "not UTF-8"),
    "string not UTF-8": (raw_file([key_value("k", 8, string(b"ab\xff"))]), "not UTF-8"),
    "alignment of 3": (raw_file([key_value("general.alignment", 4, struct.pack("<I", 24))]), "power of two"),
    "alignment of 0": (raw_file([key_value("general.alignment", 4, struct.pack("<I", 0))]), "power of two"),
    "alignment a string": (raw_file([key_value("general.alignment", 8, string("32"))]), "power of two"),
    "data cut off": (raw_file(tensors=[ONE], data=bytes(31)), "truncated: tensor 't' ends at byte"),
    "no data": (raw_file(tensors=[ONE]), "truncated: tensor 't'"),
    "offset beyond the end": (
        raw_file(tensors=[tensor_entry("t", [8], 0, 2**62)], data=bytes(32)),
        "truncated",
    ),
    "shape beyond the end": (raw_file(tensors=[tensor_entry("t", [2**63] * 4)], data=bytes(32)), "truncated"),
    "offset not aligned": (raw_file(tensors=[tensor_entry("t", [8], 0, 4)], data=bytes(64)), "not aligned"),
    "tensor twice": (raw_file(tensors=[ONE, tensor_entry("t", [8], 0, 32)], data=bytes(64)), "'t' twice"),
    "overlap": (
        raw_file(tensors=[tensor_entry("t", [16]), tensor_entry("u", [8], 0, 32)], data=bytes(64)),
        "'t' and 'u' overlap",
    ),
    "no dimensions": (raw_file(tensors=[tensor_entry("t", [])], data=bytes(32)), "0 dimensions"),
    "five dimensions": (raw_file(tensors=[tensor_entry("t", [1] * 5)], data=bytes(32)), "5 dimensions"),
    "empty dimension": (raw_file(tensors=[tensor_entry("t", [8, 0])], data=bytes(32)), "is empty"),
    "tensor of unknown type": (
        raw_file(tensors=[tensor_entry("t", [8], 4)], data=bytes(32)),
        "unknown type 4",
    ),
    "no whole blocks": (
        raw_file(tensors=[tensor_entry("t", [40], 2)], data=bytes(32)),
        "no whole Q4_0 blocks",
    ),
}


@pytest.mark.parametrize(("content", "reason"), DAMAGED.values(), ids=DAMAGED.keys())
def test_damage_is_named_with_the_file(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError) as raised:
        GgufFile(path)
    assert str(path) in str(raised.value)
    assert reason in str(raised.value)


def test_big_endian_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match="big-endian"):
        GgufFile(path)


def test_header_larger_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_file, "_MAX_HEADER_BYTES", 1 << 20)
    path = tmp_path / "long.gguf"
    path.write_bytes(raw_file([key_value("k", 8, string(b"x" * (1 << 20)))]))
    with pytest.raises(ModelError, match="longer than 1 MiB"):
        GgufFile(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.gguf", tmp_path):
        with pytest.raises(ModelError, match="can't be read"):
            GgufFile(path)

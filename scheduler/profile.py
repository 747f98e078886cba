"""A recorded profile: how long each stage takes on one machine with one model, and how that is known.

A JSON file (configs/profiles/). Its content is checked here; reading and writing it is the caller's.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from scheduler.interpolation import check_axis

FORMAT: Final = 1
"""Number of this format of the file."""

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]
ComputeType: TypeAlias = Literal["float32", "bfloat16", "float16"]
KVType: TypeAlias = Literal["float32", "bfloat16", "float16", "int8"]
Source: TypeAlias = Literal["measured", "published", "made up for emulation"]


class Provenance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the figures are from."""

    source: Source
    date: str
    """ISO 8601."""
    accelerator: str | None
    """Hardware; None for a machine without."""
    host: str | None
    """Processor and memory; None where nothing is known of it."""
    versions: dict[str, str]
    """Of the software that ran, by name."""
    spread: float | None
    """Relative spread of the measurements; None where nothing was measured."""
    assumptions: tuple[str, ...]
    """Everything that was not measured, with its source."""


class ModelShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the times depend on of a model."""

    name: str
    layers: Count
    hidden_size: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    vocab_size: Count
    page_size: Count
    """Tokens in a KV page."""
    dtype: ComputeType
    kv_dtype: KVType
    weights: str | None = None
    """How matrices are kept, as in ``EngineFacts``; None where it is not known."""


class RowTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds over a number of rows."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]
    """[rows]."""

    def __post_init__(self) -> None:
        """Raise ValueError for a table that can't be one."""
        _check_rows(self.rows)
        _check_seconds(self.seconds, len(self.rows), "rows")


class AttentionTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of one layer's attention, over rows and tokens as in ``scheduler.work.Stage``.

    Decode: ``tokens`` attended to by all rows together, so no fewer than rows; below the table's first number
    of tokens times are extended towards 0, so it can be as large as the largest number of rows. Prefill: rows
    of the chunk, and ``tokens`` before it.
    """

    rows: tuple[int, ...]
    tokens: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    """[rows][tokens]."""

    def __post_init__(self) -> None:
        """Raise ValueError for a table that can't be one."""
        _check_rows(self.rows)
        check_axis("tokens", self.tokens)
        if len(self.seconds) != len(self.rows):
            raise ValueError(f"{len(self.rows)} rows, but seconds for {len(self.seconds)}")
        for line in self.seconds:
            _check_seconds(line, len(self.tokens), "tokens")


class CopyTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A copy across the bus, in one direction."""

    latency: Seconds
    bytes_per_second: Annotated[float, Meta(gt=0)]


class AcceleratorTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the accelerator, its copies and handing work over to it take."""

    dense: RowTimes
    """Of a layer, all but its attention."""
    entry_share: Annotated[float, Meta(ge=0, le=1)]
    """Part of that which comes before the attention."""
    head: RowTimes
    """Last norm and vocabulary projection."""
    decode: AttentionTimes
    prefill: AttentionTimes
    host_prefill: AttentionTimes | None
    """Prefill attention over pages in host memory; None: ``prefill``, and their bytes across the bus."""
    download: CopyTimes
    upload: CopyTimes
    launch: Seconds
    """To hand over one operation."""
    overhead: Seconds
    """Of an iteration, beside what its operations take."""


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times on one machine, or those of its two sides that are known."""

    format: Literal[1]
    provenance: Provenance
    model: ModelShape
    accelerator: AcceleratorTimes | None
    host_attention: AttentionTimes | None
    """Decode attention on the CPU; None: to be measured where it runs."""


class _Head(msgspec.Struct):
    format: int


def decode_profile(data: bytes, name: str) -> Profile:
    """The profile in a file's content.

    Args:
        data: JSON.
        name: of the file, for the message.

    Raises:
        ValueError: it isn't one, or of another format; the message is for the user.
    """
    try:
        found = msgspec.json.decode(data, type=_Head).format
        if found != FORMAT:
            raise ValueError(f"{name} is a profile of format {found}; this version reads format {FORMAT}")
        return msgspec.json.decode(data, type=Profile)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{name} is not a profile: {error}") from error


def encode_profile(profile: Profile) -> bytes:
    """A file's content: JSON with a list of numbers on one line."""
    lines: list[str] = []
    numbers: list[str] | None = None
    for line in msgspec.json.format(msgspec.json.encode(profile), indent=2).decode().splitlines():
        value = line.strip()
        if numbers is not None and value.startswith("]"):
            lines[-1] += " ".join(numbers) + value
            numbers = None
        elif numbers is not None and value[0] in "-0123456789":
            numbers.append(value)
        else:
            lines.append(line)
            numbers = [] if line.endswith("[") else None
    return "\n".join([*lines, ""]).encode()


def with_host_attention(profile: Profile, table: AttentionTimes) -> Profile:
    """``profile`` with the CPU's decode attention as measured here."""
    return msgspec.structs.replace(profile, host_attention=table)


def for_model(profile: Profile, model: ModelShape) -> Profile:
    """``profile``, to be used for ``model``.

    Name and page size may differ, types too where the times are made up.

    Raises:
        ValueError: it is a profile of another model; the message is for the user.
    """
    fields = ["layers", "hidden_size", "heads", "kv_heads", "head_dim", "vocab_size"]
    if profile.provenance.source != "made up for emulation":
        fields += ["dtype", "kv_dtype"] + ["weights"] * (profile.model.weights is not None)
    differences = [
        f"{field} {getattr(profile.model, field)} instead of {getattr(model, field)}"
        for field in fields
        if getattr(profile.model, field) != getattr(model, field)
    ]
    if differences:
        raise ValueError(f"the profile of {profile.model.name} has {', '.join(differences)}")
    return msgspec.structs.replace(profile, model=model)


def _check_rows(rows: tuple[int, ...]) -> None:
    check_axis("rows", rows)
    if rows[0] == 0:
        raise ValueError("rows must begin with 1 or more: no rows take no time")


def _check_seconds(seconds: tuple[float, ...], points: int, axis: str) -> None:
    if len(seconds) != points:
        raise ValueError(f"{points} {axis}, but {len(seconds)} seconds")
    for value in seconds:
        if not 0 <= value < float("inf"):
            raise ValueError(f"seconds must be 0 or more, not {value}")

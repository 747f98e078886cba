"""The cost model that a recorded profile gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from scheduler.cost_model import CostModel
from scheduler.interpolation import Line, Surface
from scheduler.profile import AttentionTimes, CopyTimes, ModelShape, Profile, RowTimes
from scheduler.work import Stage

_MOST_KEPT = 2**16
"""Results of a table: numbers of tokens grow and grow."""
_SCALE_BYTES = 4
"""int8 keys and values have one float32 scale for each token and head."""

Key = TypeVar("Key")


class ProfileCosts(CostModel):
    """Interpolates a profile's tables. Results are kept: a planner asks the same again and again."""

    def __init__(self, profile: Profile) -> None:
        """Raises ValueError unless both sides, accelerator and host, are known."""
        accelerator, host_attention = profile.accelerator, profile.host_attention
        if accelerator is None:
            raise ValueError("the profile has no accelerator times")
        if host_attention is None:
            raise ValueError("the profile has no host attention times: measure them, and merge them in")
        model = profile.model
        self.layers = model.layers
        self._kv_bytes = _kv_bytes(model)
        self.page_bytes = model.layers * model.page_size * self._kv_bytes
        self.row_bytes_up = model.heads * model.head_dim * _item_bytes(model.dtype)
        self.row_bytes_down = self.row_bytes_up + 2 * model.kv_heads * model.head_dim * _item_bytes(
            model.dtype
        )
        self.launch = accelerator.launch
        self.overhead = accelerator.overhead
        self._entry_share = accelerator.entry_share
        self._extrapolated: set[Stage] = set()
        self._dense = self._over_rows(Stage.DENSE, accelerator.dense)
        self._head = self._over_rows(Stage.HEAD, accelerator.head)
        self._device_decode = self._over_both(Stage.DEVICE_DECODE, accelerator.decode)
        self._device_prefill = self._over_both(Stage.DEVICE_PREFILL, accelerator.prefill)
        self._host_prefill = (
            _Kept(self._prefill_across_the_bus)
            if accelerator.host_prefill is None
            else self._over_both(Stage.HOST_PREFILL, accelerator.host_prefill)
        )
        self._host_attention = self._over_both(Stage.HOST_ATTENTION, host_attention)
        self._download = accelerator.download
        self._upload = accelerator.upload

    @property
    def extrapolated(self) -> frozenset[Stage]:
        """Stages whose table was too small for a time asked for so far: worth a warning."""
        return frozenset(self._extrapolated)

    def dense(self, rows: int) -> float:
        """See ``CostModel``."""
        return self._dense[rows]

    def entry(self, rows: int) -> float:
        """See ``CostModel``."""
        return self._dense[rows] * self._entry_share

    def exit(self, rows: int) -> float:
        """See ``CostModel``."""
        return self._dense[rows] * (1 - self._entry_share)

    def head(self, rows: int) -> float:
        """See ``CostModel``."""
        return self._head[rows]

    def device_decode(self, rows: int, tokens: int) -> float:
        """See ``CostModel``."""
        return self._device_decode[rows, tokens]

    def device_prefill(self, rows: int, context: int) -> float:
        """See ``CostModel``."""
        return self._device_prefill[rows, context]

    def host_prefill(self, rows: int, context: int) -> float:
        """See ``CostModel``."""
        return self._host_prefill[rows, context]

    def host_attention(self, rows: int, tokens: int) -> float:
        """See ``CostModel``."""
        return self._host_attention[rows, tokens]

    def download(self, size: int) -> float:
        """See ``CostModel``."""
        return _copy(self._download, size)

    def upload(self, size: int) -> float:
        """See ``CostModel``."""
        return _copy(self._upload, size)

    def _over_rows(self, stage: Stage, table: RowTimes) -> _Kept[int]:
        line = Line(table.rows, table.seconds)

        def compute(rows: int) -> float:
            if rows == 0:
                return 0.0
            if line.outside(rows):
                self._extrapolated.add(stage)
            return line(rows)

        return _Kept(compute)

    def _over_both(self, stage: Stage, table: AttentionTimes) -> _Kept[tuple[int, int]]:
        surface = Surface(table.rows, table.tokens, table.seconds)

        def compute(work: tuple[int, int]) -> float:
            rows, tokens = work
            if rows == 0:
                return 0.0
            if surface.outside(rows, tokens):
                self._extrapolated.add(stage)
            return surface(rows, tokens)

        return _Kept(compute)

    def _prefill_across_the_bus(self, work: tuple[int, int]) -> float:
        """The context's keys and values come up, the chunk's go down, neither hidden behind the attention."""
        rows, context = work
        up = context * self._kv_bytes / self._upload.bytes_per_second
        down = rows * self._kv_bytes / self._download.bytes_per_second
        return self._device_prefill[work] + up + down if rows else 0.0


class _Kept(dict[Key, float], Generic[Key]):
    """Results of a function by argument, computed when first looked up."""

    def __init__(self, compute: Callable[[Key], float]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: Key) -> float:
        if len(self) >= _MOST_KEPT:
            self.clear()
        value = self[key] = self._compute(key)
        return value


def _copy(times: CopyTimes, size: int) -> float:
    return times.latency + size / times.bytes_per_second if size else 0.0


def _item_bytes(dtype: str) -> int:
    return {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}[dtype]


def _kv_bytes(model: ModelShape) -> int:
    """Keys and values of one token in one layer."""
    scale = _SCALE_BYTES if model.kv_dtype == "int8" else 0
    return 2 * model.kv_heads * (model.head_dim * _item_bytes(model.kv_dtype) + scale)

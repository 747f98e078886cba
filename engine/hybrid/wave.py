"""A wave: host rows whose tokens go through the layers together, their attention on the CPU."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.base import AttentionBackend, AttentionPlan
from engine.batch import make_batch
from engine.devices.base import Buffer, Device, Event, Resource, Stream
from engine.hybrid.host_attention import HostAttention, Job, LayerAttention
from engine.hybrid.rows import Attended, Rows
from engine.models.config import ModelConfig
from scheduler.plan import HostRow, ScheduledSequence
from scheduler.tier import Tier
from scheduler.types import SequenceId
from scheduler.work import Stage, Work


class Phase(enum.Enum):
    """What a wave waits for."""

    IDLE = enum.auto()
    """Rows to begin with."""
    BEGINS = enum.auto()
    """A unit that takes it into the first layer."""
    ATTENDING = enum.auto()
    """Its attention: queries, keys and values on their way down, or the CPU at work."""
    READY = enum.auto()
    """A unit that takes it to the next layer. The attention's output may still be on its way up."""
    SAMPLING = enum.auto()
    """Its logits."""


@dataclass(frozen=True, slots=True)
class WaveTools:
    """What waves work with."""

    config: ModelConfig
    dtype: torch.dtype
    page_size: int
    device: Device
    attention: HostAttention


class Wave:
    """One wave. Belongs to the executor's thread; ``Rows`` and buffers to the operations it launches."""

    def __init__(self, number: int, tools: WaveTools, backend: AttentionBackend) -> None:
        """``backend`` attends over host pages, for this wave alone: its plans are used beside others'."""
        self.number = number
        self.phase = Phase.IDLE
        self.cursor = -1
        """Layer whose attention it is in, or has done."""
        self.since = 0
        """When it entered its phase, in a count of such events: who waits longest has the least."""
        self.rows: tuple[HostRow, ...] = ()
        self._tools = tools
        self._backend = backend
        self._tokens = Rows(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
        self._make_plan: Callable[[], AttentionPlan]
        self._sent = Buffer(f"q, k and v of wave {number}")
        self._inputs = Buffer(f"q, k and v of wave {number} on the host")
        self._output = Buffer(f"attention of wave {number} on the host")
        self._attended = Buffer(f"attention of wave {number}")
        self._pinned: tuple[Tensor, Tensor, Tensor] | None = None
        self._kept: Tensor | None = None
        self._job: Job | None = None
        self._uploaded: Event | None = None

    @property
    def kv_tokens(self) -> int:
        """Tokens its rows attend to, in total."""
        return sum(row.position + 1 for row in self.rows)

    def begin(self, rows: Sequence[HostRow]) -> None:
        """Take rows whose tokens begin; or, before they entered, those of them that stay."""
        # Batches are laid out in this order, and ``self.rows`` must agree with it.
        self.rows = tuple(sorted(rows, key=lambda row: row.position // self._tools.page_size, reverse=True))
        self.cursor = -1
        self._kept = None
        self.phase = Phase.BEGINS if rows else Phase.IDLE
        self._tokens = Rows(
            torch.tensor([row.token_id for row in self.rows], dtype=torch.int64),
            torch.tensor([row.position for row in self.rows], dtype=torch.int64),
        )
        self._lay_out()

    def leave_out(self, gone: Collection[SequenceId]) -> None:
        """Go on without some rows; the wave waits for a unit."""
        if not any(row.sequence_id in gone for row in self.rows):
            return
        staying = [index for index, row in enumerate(self.rows) if row.sequence_id not in gone]
        rows = tuple(self.rows[index] for index in staying)
        if self.phase is Phase.BEGINS or not rows:
            self.begin(rows)
            return
        indices = torch.tensor(staying)
        self._kept = indices if self._kept is None else self._kept[indices]
        self.rows = rows
        self._lay_out()

    # -- units: what these return is launched on the compute stream

    def entering(self) -> Rows:
        """For a unit that takes it into the first layer."""
        return self._tokens

    def advancing(self) -> Callable[[], Attended]:
        """For a unit that takes it from its layer's attention on."""
        tokens, attended, kept = self._tokens, self._attended, self._kept
        self._kept = None

        def take() -> Attended:
            (output,) = attended.get()
            if kept is None:
                return tokens, output
            tokens.keep(kept)
            return tokens, output[kept]

        return take

    def let_wait(self, stream: Stream) -> None:
        """Have such a unit begin after what it needs is there: a copy under way, never the CPU."""
        if self.phase is Phase.READY and self._uploaded is not None:
            stream.wait(self._uploaded)

    @property
    def unit_reads(self) -> tuple[Resource, ...]:
        """Resources of such a unit."""
        return (self._attended,) if self.phase is Phase.READY else ()

    @property
    def unit_writes(self) -> tuple[Resource, ...]:
        """Resources of such a unit."""
        return (self._sent,)

    def hand_over(self) -> Callable[[], None]:
        """An operation that leaves the attention's input where the download finds it."""
        tokens, sent = self._tokens, self._sent
        return lambda: sent.set(tokens.q, tokens.kv)

    # -- the way to the CPU and back

    def send(self, unit: Event, since: int) -> None:
        """Have the next layer attended to, once ``unit`` has made its input."""
        self.cursor += 1
        self._enter(Phase.ATTENDING, since)
        device = self._tools.device
        q, kv, output = self._room()
        sent, inputs = self._sent, self._inputs

        def copy() -> None:
            device_q, device_kv = sent.get()
            q.copy_(device_q, non_blocking=True)
            kv.copy_(device_kv, non_blocking=True)

        device.download.wait(unit)
        if self._uploaded is not None:  # of rows that were let go before a unit took them up
            device.download.wait(self._uploaded)
        size = (q.numel() + kv.numel()) * q.itemsize
        device.download.launch(copy, (Work(Stage.DOWNLOAD, bytes=size),), reads=(sent,), writes=(inputs,))
        self._job = self._tools.attention.start(
            LayerAttention(
                plan=self._make_plan,
                layer=self.cursor,
                q=q,
                kv=kv,
                output=output,
                work=Work(Stage.HOST_ATTENTION, len(self.rows), self.kv_tokens),
                reads=(inputs, *self._pages_read),
                writes=(self._output, *self._pages_written),
            )
        )

    def poll(self, since: int) -> bool:
        """Go on if the CPU is done. Whether it was."""
        if self.phase is not Phase.ATTENDING or self._job is None or not self._job.done():
            return False
        self._upload()
        self._enter(Phase.READY, since)
        return True

    def sampled_from(self, since: int) -> None:
        """Its logits are on their way."""
        self._enter(Phase.SAMPLING, since)

    def cancel(self) -> None:
        """Have the CPU not begin what it was given."""
        if self._job is not None:
            self._job.cancel()

    def _enter(self, phase: Phase, since: int) -> None:
        self.phase = phase
        self.since = since

    def _upload(self) -> None:
        _q, _kv, output = self._room()
        attended = self._attended

        def copy() -> None:
            attended.set(torch.empty_like(output).copy_(output, non_blocking=True))

        upload = self._tools.device.upload
        size = output.numel() * output.itemsize
        upload.launch(copy, (Work(Stage.UPLOAD, bytes=size),), reads=(self._output,), writes=(attended,))
        self._uploaded = upload.record()

    def _room(self) -> tuple[Tensor, Tensor, Tensor]:
        """Pinned q [rows, heads, dim], k and v [rows, 2, kv_heads, dim] and output [rows, heads * dim]."""
        rows, config = len(self.rows), self._tools.config
        if self._pinned is None or len(self._pinned[0]) < rows:
            heads, dim, capacity = config.num_heads, config.head_dim, 2 * rows
            shapes = (
                (capacity, heads, dim),
                (capacity, 2, config.num_kv_heads, dim),
                (capacity, heads * dim),
            )
            q, kv, output = (self._tools.device.pinned(shape, self._tools.dtype) for shape in shapes)
            self._pinned = (q, kv, output)
        q, kv, output = self._pinned
        return q[:rows], kv[:rows], output[:rows]

    def _lay_out(self) -> None:
        """Prepare the rows' attention, for all layers to come."""
        size, tier = self._tools.page_size, Tier.HOST
        tables = {row.sequence_id: row.page_table[: row.position // size + 1] for row in self.rows}
        self._pages_read: tuple[Resource, ...] = tuple(
            (tier, page) for table in tables.values() for page in table
        )
        self._pages_written: tuple[Resource, ...] = tuple((tier, table[-1]) for table in tables.values())
        self._make_plan = _once(self._backend, _sequences(self.rows, tables), size)


def _sequences(
    rows: Sequence[HostRow], tables: dict[SequenceId, tuple[int, ...]]
) -> tuple[ScheduledSequence, ...]:
    return tuple(
        ScheduledSequence(
            sequence_id=row.sequence_id,
            token_ids=(row.token_id,),
            start=row.position,
            page_table=tables[row.sequence_id],
            sample=None,
        )
        for row in rows
    )


def _once(
    backend: AttentionBackend, sequences: tuple[ScheduledSequence, ...], page_size: int
) -> Callable[[], AttentionPlan]:
    """Makes the plan in the first call, which may touch pages, so that an operation can do it."""
    plans: list[AttentionPlan] = []

    def plan() -> AttentionPlan:
        if not plans:
            plans.append(backend.plan(make_batch(sequences, page_size)))
        return plans[0]

    return plan

"""Pages on their way to the other tier, a piece at a time, so that rows' own copies come in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from engine.devices.base import Device, Event
from engine.kv_storage import KVStorage
from scheduler.plan import Migration
from scheduler.tier import Tier
from scheduler.types import SequenceId
from scheduler.work import Stage, Work

_BYTES_AT_ONCE = 1 << 20


class Migrations:
    """One piece each way at a time, in the order they were asked for."""

    def __init__(self, device: Device, tiers: Mapping[Tier, KVStorage], page_bytes: int) -> None:
        self._device = device
        self._tiers = tiers
        self._page_bytes = page_bytes
        self._pages_at_once = max(1, _BYTES_AT_ONCE // page_bytes)
        self._ways: dict[Tier, deque[_Piece]] = {tier: deque() for tier in Tier}
        self._done: list[SequenceId] = []

    @property
    def has_done(self) -> bool:
        """Whether ``done`` has anything to tell."""
        return bool(self._done)

    def begin(self, migrations: tuple[Migration, ...]) -> None:
        """Queue them."""
        for migration in migrations:
            starts = range(0, len(migration.source_pages), self._pages_at_once)
            for start in starts:
                pages = slice(start, start + self._pages_at_once)
                source, target = migration.source_pages[pages], migration.target_pages[pages]
                ends = migration.sequence_id if start == starts[-1] else None
                self._ways[migration.source].append(_Piece(migration.source, source, target, ends))
        self.poll()

    def poll(self) -> None:
        """Launch what can be launched, and see what has ended."""
        for pieces in self._ways.values():
            while pieces:
                piece = pieces[0]
                if piece.event is None:
                    piece.event = self._launch(piece)
                if not piece.event.query():
                    break
                pieces.popleft()
                if piece.ends is not None:
                    self._done.append(piece.ends)

    def done(self) -> tuple[SequenceId, ...]:
        """Sequences whose pages have all arrived since the last call."""
        done, self._done = tuple(self._done), []
        return done

    def _launch(self, piece: _Piece) -> Event:
        source, target = piece.source, Tier.HOST if piece.source is Tier.DEVICE else Tier.DEVICE
        down = source is Tier.DEVICE
        stream = self._device.download if down else self._device.upload
        size = len(piece.source_pages) * self._page_bytes
        stream.launch(
            _copy(self._tiers[source], self._tiers[target], piece),
            (Work(Stage.DOWNLOAD if down else Stage.UPLOAD, bytes=size),),
            reads=tuple((source, page) for page in piece.source_pages),
            writes=tuple((target, page) for page in piece.target_pages),
        )
        return stream.record()


class _Piece:
    def __init__(
        self,
        source: Tier,
        source_pages: tuple[int, ...],
        target_pages: tuple[int, ...],
        ends: SequenceId | None,
    ) -> None:
        self.source = source
        self.source_pages = source_pages
        self.target_pages = target_pages
        self.ends = ends
        self.event: Event | None = None


def _copy(source: KVStorage, target: KVStorage, piece: _Piece) -> Callable[[], None]:
    def copy() -> None:
        pages_from, pages_to = _pages(source), _pages(target)
        for page_from, page_to in zip(piece.source_pages, piece.target_pages, strict=True):
            pages_to[page_to].copy_(pages_from[page_from], non_blocking=True)

    return copy


def _pages(storage: KVStorage) -> Tensor:
    """[pages, bytes]."""
    return storage.blocks.view(storage.num_pages, -1).view(torch.uint8)

"""All host rows the executor knows: which wave has them, which wait for one, which are to be let go."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from engine.hybrid.wave import Phase, Wave
from scheduler.plan import HostRow, WaveProgress
from scheduler.types import SequenceId


class HostRows:
    """Kept from iteration to iteration."""

    def __init__(self, new_wave: Callable[[int], Wave], layers: int) -> None:
        """``new_wave`` makes the wave of a number; the model has ``layers``."""
        self._new_wave = new_wave
        self._last_layer = layers - 1
        self._waves: dict[int, Wave] = {}
        self._listed: dict[SequenceId, HostRow] = {}
        self._waiting: dict[SequenceId, HostRow] = {}
        """Rows that are to begin a token."""
        self._leaving: set[SequenceId] = set()
        """Rows of a wave that are no longer listed."""
        self._dropped: list[SequenceId] = []
        self._sampled: set[SequenceId] = set()
        """In this iteration."""

    def __iter__(self) -> Iterator[Wave]:
        return iter(self._waves.values())

    def __len__(self) -> int:
        return len(self._listed)

    @property
    def has_dropped(self) -> bool:
        """Whether ``dropped`` has anything to tell."""
        return bool(self._dropped)

    def take(self, rows: tuple[HostRow, ...]) -> None:
        """The rows of a new iteration.

        Raises:
            ValueError: one is not where the executor has it.
        """
        for wave in self:
            if wave.phase is Phase.BEGINS:  # nothing was done yet: it may be divided anew
                wave.begin(())
        listed = {row.sequence_id: row for row in rows}
        held = {row.sequence_id: row for wave in self for row in wave.rows}
        gone = self._listed.keys() - listed.keys()
        self._leaving |= gone & held.keys()
        self._dropped += sorted(gone - held.keys())
        self._waiting.clear()
        self._sampled.clear()
        self._listed = listed
        for sequence_id, row in listed.items():
            if sequence_id in self._leaving:
                raise ValueError(f"sequence {sequence_id} comes back before it was let go")
            if sequence_id not in held:
                self._waiting[sequence_id] = row
            elif held[sequence_id].position != row.position:
                raise ValueError(
                    f"sequence {sequence_id} is at {held[sequence_id].position}, not {row.position}"
                )
        self.settle()

    def settle(self) -> None:
        """Let go of rows where that can be done now, and begin waves that have come to a token's end."""
        for wave in self:
            if self._leaving and wave.phase in (Phase.BEGINS, Phase.READY):
                gone = self._leaving & {row.sequence_id for row in wave.rows}
                wave.leave_out(gone)
                self._leaving -= gone
                self._dropped += sorted(gone)
        self._begin()

    def may_leave(self, wave: Wave) -> bool:
        """Whether a ready wave may take its next unit: all but the last need no ``SampleSpec``.

        At most one token of a row is sampled in an iteration, since the next one's spec comes with a plan.
        """
        if wave.cursor < self._last_layer or wave.phase is not Phase.READY:
            return True
        return not any(row.sequence_id in self._sampled for row in wave.rows)

    def spec_rows(self, wave: Wave) -> list[HostRow]:
        """The wave's rows with the specs of this iteration."""
        return [self._listed.get(row.sequence_id, row) for row in wave.rows]

    def sampled(self, wave: Wave, tokens: dict[SequenceId, int | None]) -> list[SequenceId]:
        """A wave has come to its token's end.

        Args:
            wave: whose rows these are.
            tokens: by sequence; None where there is none.

        Returns:
            The sequences that were not let go meanwhile: the others' tokens are nobody's.
        """
        wanted = []
        for row in wave.rows:
            if row.sequence_id in self._leaving:
                self._leaving.remove(row.sequence_id)
                self._dropped.append(row.sequence_id)
                continue
            wanted.append(row.sequence_id)
            self._sampled.add(row.sequence_id)
            listed, token = self._listed[row.sequence_id], tokens[row.sequence_id]
            if token is not None and listed.continues:
                self._waiting[row.sequence_id] = msgspec.structs.replace(
                    listed, token_id=token, position=row.position + 1
                )
        wave.begin(())
        self.settle()
        return wanted

    def dropped(self) -> tuple[SequenceId, ...]:
        """Rows let go since the last call."""
        dropped, self._dropped = tuple(self._dropped), []
        return dropped

    def progress(self) -> tuple[WaveProgress, ...]:
        """Where the waves are."""
        return tuple(
            WaveProgress(
                wave.number,
                len(wave.rows),
                wave.kv_tokens,
                wave.cursor,
                wave.phase in (Phase.BEGINS, Phase.READY),
            )
            for wave in self
            if wave.rows
        )

    def _begin(self) -> None:
        by_wave: dict[int, list[HostRow]] = {}
        for row in self._waiting.values():
            if row.wave is not None:
                by_wave.setdefault(row.wave, []).append(row)
        for number, rows in sorted(by_wave.items()):
            if number not in self._waves:
                self._waves[number] = self._new_wave(number)
            wave = self._waves[number]
            if wave.phase not in (Phase.IDLE, Phase.BEGINS):
                continue
            wave.begin([*wave.rows, *rows])
            for row in rows:
                del self._waiting[row.sequence_id]

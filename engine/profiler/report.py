"""A measured profile in a few lines, and the progress of measuring it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from scheduler.profile import AttentionTimes, CopyTimes, Profile, RowTimes
from scheduler.profile_costs import ProfileCosts

_BAR_WIDTH = 30
_SHOWN_ROWS = (1, 16, 64, 512)


class ProgressLine:
    """A bar that redraws itself on a terminal; elsewhere a line for each thing that is measured."""

    def __init__(self, name: str, stream: TextIO) -> None:
        """``name`` is the model's."""
        self._name = name
        self._stream = stream
        self._redraws = stream.isatty()
        self._last = ""

    def update(self, title: str, done: float) -> None:
        """``title`` is being measured, ``done`` of the whole is, 0 to 1."""
        if self._redraws:
            filled = round(done * _BAR_WIDTH)
            bar = "[" + "#" * filled + "." * (_BAR_WIDTH - filled) + "]"
            # Clear to the end of the line: the one before may have been longer.
            self._stream.write(f"\rProfiling {self._name}: {bar} {done:4.0%}, {title}\x1b[K")
        elif title != self._last:
            self._stream.write(f"Profiling {self._name}: {done:.0%}, {title}\n")
        self._last = title
        self._stream.flush()

    def end(self) -> None:
        """Leave the line as it is."""
        if self._redraws and self._last:
            self._stream.write("\n")
            self._stream.flush()


def summary(profile: Profile) -> str:
    """The most telling times of a profile with both sides."""
    rows = list(_lines(profile))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {value}" for name, value in rows)


def _lines(profile: Profile) -> Iterator[tuple[str, str]]:
    times, host, provenance = profile.accelerator, profile.host_attention, profile.provenance
    token_bytes = ProfileCosts(profile).page_bytes // (profile.model.layers * profile.model.page_size)
    if times is not None:
        yield "dense work of a layer", _over_rows(times.dense)
        yield "part before attention", f"{times.entry_share:.0%}"
        yield "head", _over_rows(times.head)
        yield "decode attention", _over_tokens(times.decode, token_bytes)
        yield "copies down", _copies(times.download)
        yield "copies up", _copies(times.upload)
        yield "launch", _duration(times.launch)
    if host is not None:
        yield "attention on the CPU", _over_tokens(host, token_bytes)
    if provenance.spread is not None:
        yield "spread", f"{provenance.spread:.0%} (middle half of the samples, median of all points)"


def _over_rows(table: RowTimes) -> str:
    shown = [pair for pair in zip(table.rows, table.seconds, strict=True) if pair[0] in _SHOWN_ROWS]
    return ", ".join(f"{_duration(seconds)} for {_counted(rows, 'row')}" for rows, seconds in shown)


def _over_tokens(table: AttentionTimes, token_bytes: int) -> str:
    """Of a middling number of rows, with the rate at which keys and values are read."""
    row = len(table.rows) // 2
    cells = zip(table.tokens, table.seconds[row], strict=True)
    shown = [
        f"{_duration(seconds)} over {tokens} tokens ({tokens * token_bytes / seconds / 1e9:.1f} GB/s)"
        for tokens, seconds in cells
        if seconds > 0
    ]
    return f"{_counted(table.rows[row], 'row')}: {', '.join(shown[-2:])}"


def _copies(times: CopyTimes) -> str:
    return f"{_duration(times.latency)}, then {times.bytes_per_second / 1e9:.1f} GB/s"


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

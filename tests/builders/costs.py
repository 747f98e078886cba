"""A cost model in a few figures, for tests: dense work flat in rows, then linear; the rest by rate."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.work import Stage, Work

_ENTRY = 0.4
"""Share of a layer's dense work that comes before its attention."""


@dataclass(kw_only=True, slots=True)
class AnalyticCosts:
    """A ``CostModel``: rates in units a second, times in seconds, sizes in bytes."""

    layers: int = 32
    page_bytes: int = 1 << 20
    row_bytes_down: int = 4096
    row_bytes_up: int = 2048
    launch: float = 10e-6
    overhead: float = 200e-6
    linear: float = 1e-3
    """Dense work of one layer while it only reads the weights."""
    row: float = 0.0
    """Of one row more, once that takes longer than reading the weights."""
    last: float = 0.5e-3
    """The head, for any number of rows."""
    device_rate: float = 200e6
    """KV tokens of one layer."""
    prefill_rate: float = 1e9
    """Pairs of new token and token attended to, of one layer."""
    host_rate: float = 20e6
    """KV tokens of one layer."""
    host_latency: float = 0.0
    """Of one layer's attention on the CPU."""
    bus_rate: float = 10e9
    bus_latency: float = 20e-6

    def dense(self, rows: int) -> float:
        return max(self.linear, self.row * rows) if rows else 0.0

    def entry(self, rows: int) -> float:
        return _ENTRY * self.dense(rows)

    def exit(self, rows: int) -> float:
        return (1 - _ENTRY) * self.dense(rows)

    def head(self, rows: int) -> float:
        return self.last if rows else 0.0

    def device_decode(self, rows: int, tokens: int) -> float:
        return tokens / self.device_rate if rows else 0.0

    def device_prefill(self, rows: int, context: int) -> float:
        return rows * (context + rows / 2) / self.prefill_rate

    def host_prefill(self, rows: int, context: int) -> float:
        bus = (context + rows) * self.page_bytes / (16 * self.layers * self.bus_rate)
        return self.device_prefill(rows, context) + bus

    def host_attention(self, rows: int, tokens: int) -> float:
        return self.host_latency + tokens / self.host_rate if rows else 0.0

    def download(self, size: int) -> float:
        return self.bus_latency + size / self.bus_rate if size else 0.0

    def upload(self, size: int) -> float:
        return self.download(size)

    def seconds(self, work: Work) -> float:
        match work.stage:
            case Stage.DENSE | Stage.ENTRY | Stage.EXIT | Stage.HEAD:
                return float(getattr(self, work.stage.value)(work.rows))
            case Stage.DOWNLOAD | Stage.UPLOAD:
                return self.download(work.bytes)
            case _:
                return float(getattr(self, work.stage.value)(work.rows, work.tokens))


EMULATED = AnalyticCosts(
    layers=30, linear=1e-3, host_rate=19e6, device_rate=200e6, bus_latency=50e-6, last=0.5e-3
)
"""A small accelerator: 1 ms a layer."""
T4_7B = AnalyticCosts(
    layers=32,
    linear=1.35e-3,
    row=10e-6,
    last=0.87e-3,
    device_rate=300e9 / 16384,
    host_rate=40e9 / 16384,
    row_bytes_down=3 * 8192,
    row_bytes_up=8192,
    bus_latency=50e-6,
)
"""7B fp16: 405 MB of weights and 16 KB of KV a token and layer; 300 GB/s, 40 TFLOPS; CPU 40 GB/s."""
A10_8B = AnalyticCosts(
    layers=32,
    linear=0.85e-3,
    row=7e-6,
    last=2e-3,
    device_rate=510e9 / 4096,
    host_rate=40e9 / 4096,
    row_bytes_down=12288,
    row_bytes_up=8192,
    bus_latency=50e-6,
)
"""8B fp16 with 8 KV heads: 436 MB and 4 KB; 510 GB/s, 62 TFLOPS; CPU 40 GB/s."""

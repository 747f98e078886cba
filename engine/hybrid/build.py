"""Puts the hybrid executor together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.attention.base import AttentionBackend
from engine.attention.choice import host_attention
from engine.attention.native import NativeAttention
from engine.devices.base import Device
from engine.hybrid.executor import HybridExecutor
from engine.hybrid.host_attention import NativeDriver, StreamAttention
from engine.hybrid.host_rows import HostRows
from engine.hybrid.iteration import Machine
from engine.hybrid.meter import Meter, MeteredDevice
from engine.hybrid.migrations import Migrations
from engine.hybrid.pacer import Pacer
from engine.hybrid.wave import Wave, WaveTools
from engine.kernels.loader import Kernels
from engine.kv_storage import KVStorage, page_bytes
from engine.models.decoder import DecoderModel
from engine.sampling.native import NativeSampler
from scheduler.clock import Clock
from scheduler.cost_model import CostModel
from scheduler.tier import Tier

_LAUNCH_SECONDS = 0.0002
"""Where no profile says how long it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridParts:
    """What the executor is made of."""

    model: DecoderModel
    device: Device
    tiers: Mapping[Tier, KVStorage]
    attention: Mapping[Tier, AttentionBackend]
    """The accelerator's, over the pages of each tier."""
    host_kernels: Kernels | None
    """For the CPU's. Without them, or where they don't know the model's shape, torch does it on the device's
    host stream."""
    costs: CostModel | None
    warn: Callable[[], None] = lambda: None
    """Called after every iteration."""
    clock: Clock
    eos_token_ids: tuple[int, ...]
    sampler: NativeSampler | None = None
    """With threads of its own: it must not wait for a layer's attention. Without it numpy samples."""
    host_attention_on_stream: bool = False
    """Have kernels, too, run on the host stream: for devices that check its order."""
    host_attention_repeats: int = 1
    """For benchmarks, see ``NativeDriver``."""


def hybrid_executor(parts: HybridParts) -> HybridExecutor:
    """An executor that owns the device."""
    model, tiers = parts.model, parts.tiers
    host = tiers[Tier.HOST]
    meter = Meter(parts.costs)
    device: Device = MeteredDevice(parts.device, meter)

    def wave_backend() -> AttentionBackend:
        return host_attention(model.config, host, model.dtype, parts.host_kernels)

    native = isinstance(wave_backend(), NativeAttention) and not parts.host_attention_on_stream
    attention = (
        NativeDriver(device, meter, parts.clock, parts.host_attention_repeats)
        if native
        else StreamAttention(device)
    )
    tools = WaveTools(model.config, model.dtype, host.page_size, device, attention)

    def new_wave(number: int) -> Wave:
        return Wave(number, tools, wave_backend())

    machine = Machine(
        model=model,
        device=device,
        attention=parts.attention,
        host_rows=HostRows(new_wave, len(model.layers)),
        migrations=Migrations(device, tiers, page_bytes(model.config, host.page_size, host.dtype)),
        meter=meter,
        pacer=Pacer(parts.clock, _LAUNCH_SECONDS if parts.costs is None else parts.costs.launch),
        clock=parts.clock,
        page_size=host.page_size,
        eos_token_ids=parts.eos_token_ids,
        sampler=parts.sampler,
    )
    return HybridExecutor(machine, attention, parts.warn)

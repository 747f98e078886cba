"""The accelerator's times, measured in two or three seconds while the engine starts without any profile."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from contextlib import closing

from engine.clock import MonotonicClock
from engine.devices.emulated import EmulatedDevice
from engine.kernels.loader import Kernels
from engine.kv_storage import KVStorage
from engine.memory import free_host_bytes
from engine.models.decoder import DecoderModel
from engine.profiler.accelerator import Accelerator, Shares, accelerator_times
from engine.profiler.grid import QUICK
from engine.profiler.host_attention import QUICK_MEMORY
from engine.profiler.kv_pages import KVPages
from engine.profiler.measure import stand_in_provenance
from engine.profiler.session import Session
from engine.profiler.shape import model_shape
from engine.profiler.surroundings import LoadMeter
from scheduler.clock import Clock
from scheduler.profile import FORMAT, Profile
from scheduler.tier import Tier

_SECONDS = 2.0
_SHARES = Shares(dense=0.35, entry=0.05, head=0.15, decode=0.15, prefill=0.2, copies=0.05, launches=0.05)


def measure_at_start(
    model: DecoderModel,
    tiers: Mapping[Tier, KVStorage],
    kernels: Kernels | None,
    clock: Clock | None = None,
) -> Profile:
    """A profile of an emulated accelerator that keeps to no pace, without attention on the CPU.

    Args:
        model: loaded.
        tiers: pages like those measured; they are left alone.
        kernels: of the accelerator's attention; None for torch.
        clock: default: the real one.
    """
    clock, load = clock or MonotonicClock(), LoadMeter()
    began, like = clock.now(), tiers[Tier.DEVICE]
    pages = KVPages(
        model.config,
        like.page_size,
        like.dtype,
        tokens=QUICK.most_tokens,
        sequences=QUICK.most_sequences,
        memory=min(free_host_bytes() // 4, QUICK_MEMORY),
    )
    session = Session(_SECONDS - (clock.now() - began), clock, lambda _title, _done: None)
    with closing(EmulatedDevice()) as device:
        times = accelerator_times(Accelerator(device, model, kernels), pages, QUICK, session, _SHARES)
        facts = device.facts
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Profile(
        format=FORMAT,
        provenance=stand_in_provenance(facts, kernels, session.spread, today, load.others()),
        model=model_shape(model, like),
        accelerator=times,
        host_attention=None,
    )

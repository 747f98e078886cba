"""From settings to an executor with two tiers, and the planner that goes with it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.attention.choice import host_attention
from engine.clock import MonotonicClock
from engine.devices.choice import make_device
from engine.hybrid.build import HybridParts, hybrid_executor
from engine.hybrid.executor import HybridExecutor
from engine.hybrid.shares import accelerator_threads
from engine.kernels.loader import Kernels, load_kernels
from engine.kv_storage import KVStorage
from engine.model_error import ModelError
from engine.models.decoder import DecoderModel
from engine.profiler.host_attention import measure_host_attention
from engine.profiler.shape import model_shape
from engine.profiler.startup import measure_at_start
from engine.sampling.native import NativeSampler
from engine.thread_environment import share_the_interpreter
from scheduler.learning_planner import LearningPlanner
from scheduler.messages import Start
from scheduler.overlap_planner import PlanLimits
from scheduler.plan import PlanMode
from scheduler.profile import ModelShape, Profile, decode_profile, for_model, with_host_attention
from scheduler.profile_costs import ProfileCosts
from scheduler.tier import Tier
from scheduler.work import Stage

_HOST_ATTENTION_SECONDS = 1.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hybrid:
    """What serving with an accelerator takes."""

    executor: HybridExecutor
    planner: LearningPlanner
    costs: ProfileCosts


class Extrapolations:
    """Warns once of every stage whose work went beyond the profile's table."""

    def __init__(self, costs: ProfileCosts) -> None:
        self._costs = costs
        self._warned: frozenset[Stage] = frozenset()

    def warn(self) -> None:
        """Look at what was asked of the costs so far."""
        for stage in sorted(self._costs.extrapolated - self._warned):
            logger.warning("the profile does not reach as far as the work of stage %s: extrapolating", stage)
        self._warned = self._costs.extrapolated


def load_hybrid(
    start: Start,
    model: DecoderModel,
    tiers: Mapping[Tier, KVStorage],
    eos_token_ids: tuple[int, ...],
    accelerator_kernels: Kernels | None,
) -> Hybrid:
    """Open the device, learn the costs, and put the executor together.

    Args:
        start: what was asked for; its device is not the CPU.
        model: loaded.
        tiers: pages of each tier.
        eos_token_ids: banned before a request's ``min_tokens``.
        accelerator_kernels: with ``accelerator_threads``.

    Raises:
        ModelError: a profile can't be used, or there is no such device.
    """
    share_the_interpreter()
    threads = torch.get_num_threads()
    torch.set_num_threads(accelerator_threads(threads))
    host_kernels = load_kernels(start.cpu_kernels, max(threads // 2, 1))
    pace, plans = _profiles(start, model, tiers, host_kernels)
    costs = ProfileCosts(plans)
    limits = PlanLimits(
        tpot=start.tpot_limit,
        host_tpot=start.host_tpot_limit,
        mode=None if start.plan_mode == "auto" else PlanMode(start.plan_mode),
    )
    executor = hybrid_executor(
        HybridParts(
            model=model,
            device=make_device(start.device, None if pace is None else ProfileCosts(pace)),
            tiers=tiers,
            attention={
                tier: host_attention(model.config, storage, model.dtype, accelerator_kernels)
                for tier, storage in tiers.items()
            },
            host_kernels=host_kernels,
            costs=costs,
            warn=Extrapolations(costs).warn,
            clock=MonotonicClock(),
            eos_token_ids=eos_token_ids,
            sampler=_sampler(start.cpu_kernels) if host_kernels is not None else None,
        )
    )
    return Hybrid(executor, LearningPlanner(costs, limits), costs)


def _sampler(cpu_kernels: str) -> NativeSampler | None:
    kernels = load_kernels(cpu_kernels, 1)
    return None if kernels is None else NativeSampler(kernels)


def _profiles(
    start: Start, model: DecoderModel, tiers: Mapping[Tier, KVStorage], kernels: Kernels | None
) -> tuple[Profile | None, Profile]:
    """What the emulated device keeps to, if anything, and what plans are made with."""
    host = tiers[Tier.HOST]
    shape = model_shape(model, host)
    pace = None if start.emulate_profile is None else _read(start.emulate_profile, shape)
    plans = pace if start.profile is None else _read(start.profile, shape)
    table = None if plans is None else plans.host_attention
    if table is None:
        logger.info("measuring attention on the CPU")
        table = measure_host_attention(
            model.config, model.dtype, host.dtype, host.page_size, kernels, _HOST_ATTENTION_SECONDS
        )
    if plans is None:
        plans = measure_at_start(model, tiers, kernels)
    complete = None if pace is None else with_host_attention(pace, table)
    return complete, with_host_attention(plans, table)


def _read(path: str, shape: ModelShape) -> Profile:
    """The profile in a file, for this model."""
    try:
        profile = for_model(decode_profile(Path(path).read_bytes(), path), shape)
    except OSError as error:
        raise ModelError(f"can't read profile {path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelError(str(error)) from error
    if profile.accelerator is None:
        raise ModelError(f"profile {path} does not tell the accelerator's times")
    return profile

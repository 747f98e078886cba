"""From ``Start`` to an engine ready to serve: model, pages, limits, and the facts learnt on the way."""

from __future__ import annotations

import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from engine.hybrid.shares import accelerator_threads, device_pages
from engine.kernels.loader import Kernels, load_kernels
from engine.kv_storage import KVStorage, page_bytes
from engine.memory import GIB, free_host_bytes, kv_pages
from engine.model_error import ModelError
from engine.model_loader import compute_dtype, load_model
from engine.models.config import ModelConfig
from engine.models.decoder import DecoderModel
from engine.models.layers import dtype_name
from engine.models.registry import parameters
from engine.models.weight_facts import weight_facts
from engine.precision import choose_precision
from engine.runner import make_runner
from engine.sampling.native import NativeSampler
from engine.torch_executor import TorchExecutor
from engine.weights.check import open_checkpoint
from engine.weights.source import ModelSource
from scheduler.cost_model import CostModel
from scheduler.executor import Executor
from scheduler.limits import Limits
from scheduler.messages import EngineFacts, Loading, Start
from scheduler.plan import IterationPlan, PlanMode, SampleSpec, ScheduledSequence
from scheduler.planner import Planner
from scheduler.tier import Tier
from scheduler.types import SamplingParams, SequenceId

logger = logging.getLogger(__name__)


class LoadedEngine(msgspec.Struct, frozen=True):
    """What the iteration loop is built from."""

    executor: Executor
    limits: Limits
    facts: EngineFacts
    planner: Planner | None
    """With an accelerator only."""
    costs: CostModel | None


class _Serving(NamedTuple):
    executor: Executor
    planner: Planner | None
    costs: CostModel | None


def load_engine(start: Start, report: Callable[[Loading], None]) -> LoadedEngine:
    """Load the model and allocate its pages; ``report`` hears of the progress.

    Raises:
        ModelError: the model can't be served as asked.
    """
    began = time.perf_counter()
    threads = start.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    dense_threads = threads if start.device == "cpu" else accelerator_threads(threads)
    kernels = load_kernels(start.cpu_kernels, dense_threads)
    kv_dtype = compute_dtype(start.dtype) if start.kv_dtype == "auto" else getattr(torch, start.kv_dtype)
    source = ModelSource(start.model_kind, Path(start.model_path), start.model_name)
    checkpoint = open_checkpoint(source)
    config = checkpoint.config
    precision = choose_precision(start.dtype, start.quantization, checkpoint, kernels)
    size = page_bytes(config, start.page_size, kv_dtype)
    # What can't be is refused before the weights are read, as far as it is known without probing.
    probed = start.host_kv_pages is None and start.host_kv_gib is None
    free = sys.maxsize if probed else 0
    asked_pages = kv_pages(size, start.host_kv_pages, start.host_kv_gib, free)
    context_length(start.max_model_len, config, decoding_pages(start, asked_pages) * start.page_size)
    model = load_model(
        checkpoint,
        precision.compute,
        lambda *counts: report(_loading(*counts)),
        precision.matrices(kernels, native_floats=start.device == "cpu"),
    )
    pages = kv_pages(size, start.host_kv_pages, start.host_kv_gib, free_host_bytes())
    context = context_length(start.max_model_len, config, decoding_pages(start, pages) * start.page_size)
    if context < config.context_length and start.max_model_len is None:
        logger.warning("context cut to the KV pages: %d of %d tokens", context, config.context_length)
    tiers = {Tier.HOST: _allocate(config, pages, start.page_size, kv_dtype)}
    on_device = device_pages(start, pages)
    if on_device:
        tiers[Tier.DEVICE] = _allocate(config, on_device, start.page_size, kv_dtype)
    served = _serving(start, model, tiers, kernels)
    _warm_up(served.executor, tiers)
    limits = Limits(
        host_pages=pages,
        device_pages=on_device,
        host_decodes=start.plan_mode != PlanMode.ACCELERATOR_ONLY.value,
        page_size=start.page_size,
        page_bytes=size,
        max_running=start.max_running,
        max_batch_tokens=start.max_batch_tokens,
        context_length=context,
        eos_token_ids=config.eos_token_ids,
        prefix_caching=start.prefix_caching,
    )
    facts = _facts(model, limits, kv_dtype, _device_name(start, kernels), time.perf_counter() - began)
    return LoadedEngine(served.executor, limits, facts, served.planner, served.costs)


def _facts(
    model: DecoderModel, limits: Limits, kv_dtype: torch.dtype, device_name: str, load_seconds: float
) -> EngineFacts:
    config, weights = model.config, weight_facts(model.parts)
    return EngineFacts(
        model_name=config.name,
        family=config.family,
        dtype=dtype_name(model.dtype),
        weights=weights.formats,
        weight_bytes=weights.nbytes,
        device_name=device_name,
        vocab_size=config.vocab_size,
        context_length=limits.context_length,
        eos_token_ids=config.eos_token_ids,
        page_size=limits.page_size,
        host_kv_pages=limits.host_pages,
        device_kv_pages=limits.device_pages,
        page_bytes=limits.page_bytes,
        kv_dtype=dtype_name(kv_dtype),
        parameters=parameters(config),
        load_seconds=load_seconds,
    )


def _serving(
    start: Start, model: DecoderModel, tiers: Mapping[Tier, KVStorage], kernels: Kernels | None
) -> _Serving:
    eos = model.config.eos_token_ids
    if start.device != "cpu":
        # Imported here: serving from the CPU alone starts sooner without it.
        from engine.hybrid.loading import load_hybrid

        hybrid = load_hybrid(start, model, tiers, eos, kernels)
        return _Serving(hybrid.executor, hybrid.planner, hybrid.costs)
    sampler = NativeSampler(kernels) if kernels is not None else None
    runner = make_runner(model, tiers[Tier.HOST], kernels)
    return _Serving(TorchExecutor(runner, eos, sampler), None, None)


def decoding_pages(start: Start, host_pages: int) -> int:
    """Pages of the largest tier that sequences decode in."""
    on_device = device_pages(start, host_pages)
    if on_device and start.plan_mode == PlanMode.ACCELERATOR_ONLY.value:
        return on_device
    return max(on_device, host_pages)


def context_length(asked: int | None, config: ModelConfig, tokens_in_pages: int) -> int:
    """The longest sequence served: what was asked for, or what model and pages both hold.

    Raises:
        ModelError: more was asked for than one of them holds.
    """
    if asked is None:
        return min(config.context_length, tokens_in_pages)
    if asked > config.context_length:
        raise ModelError(
            f"max_model_len {asked} is above the model's context of {config.context_length} tokens"
        )
    if asked > tokens_in_pages:
        raise ModelError(f"max_model_len {asked} is above the {tokens_in_pages} tokens the KV pages hold")
    return asked


def _loading(tensors_done: int, tensors_total: int, bytes_done: int, bytes_total: int) -> Loading:
    return Loading(
        tensors_done=tensors_done,
        tensors_total=tensors_total,
        bytes_done=bytes_done,
        bytes_total=bytes_total,
    )


def _device_name(start: Start, kernels: Kernels | None) -> str:
    instructions = "torch" if kernels is None else kernels.instruction_set
    threads = start.threads or len(os.sched_getaffinity(0))
    cpu = f"{platform.machine()} CPU, {threads} threads, {instructions} kernels"
    return cpu if start.device == "cpu" else f"{start.device} accelerator on {cpu}"


def _allocate(config: ModelConfig, pages: int, page_size: int, dtype: torch.dtype) -> KVStorage:
    try:
        return KVStorage(config, pages, page_size, dtype)
    except MemoryError as error:
        gib = pages * page_bytes(config, page_size, dtype) / GIB
        raise ModelError(f"no memory for {pages} KV pages ({gib:.1f} GiB)") from error


def _warm_up(executor: Executor, tiers: Mapping[Tier, KVStorage]) -> None:
    """Compute a few tokens, so that the first request does not pay for what libraries set up lazily."""
    sample = SampleSpec(
        params=SamplingParams(max_tokens=1, temperature=0.0, seed=0),
        choice=0,
        output_length=0,
        prompt_length=1,
        history=None,
    )
    sequences = (
        ScheduledSequence(
            sequence_id=SequenceId(number),
            token_ids=(0, 0),
            start=0,
            page_table=tuple(range(storage.num_pages - -(-2 // storage.page_size), storage.num_pages)),
            sample=sample,
            tier=tier,
        )
        for number, (tier, storage) in enumerate(tiers.items())
    )
    executor.submit(IterationPlan(0, tuple(sequences)))
    executor.collect()

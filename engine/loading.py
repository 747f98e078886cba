"""From ``Start`` to an engine ready to serve: model, pages, limits, and the facts learnt on the way."""

from __future__ import annotations

import logging
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from engine.attention.choice import host_attention
from engine.kernels.loader import Kernels, load_kernels
from engine.kv_storage import KVStorage, page_bytes
from engine.memory import GIB, free_host_bytes, kv_pages
from engine.model_error import ModelError
from engine.model_loader import compute_dtype, load_model
from engine.model_runner import ModelRunner
from engine.models.config import ModelConfig
from engine.models.registry import parameters
from engine.torch_executor import TorchExecutor
from engine.weights.check import open_checkpoint
from engine.weights.source import ModelSource
from scheduler.messages import EngineFacts, Loading, Start
from scheduler.plan import IterationPlan, SampleSpec, ScheduledSequence
from scheduler.scheduler import Limits
from scheduler.types import SamplingParams, SequenceId

logger = logging.getLogger(__name__)


class LoadedEngine(msgspec.Struct, frozen=True):
    """What the iteration loop is built from."""

    executor: TorchExecutor
    limits: Limits
    facts: EngineFacts


def load_engine(start: Start, report: Callable[[Loading], None]) -> LoadedEngine:
    """Load the model and allocate its pages; ``report`` hears of the progress.

    Raises:
        ModelError: the model can't be served as asked.
    """
    began = time.perf_counter()
    torch.set_num_threads(start.threads or len(os.sched_getaffinity(0)))
    kernels = load_kernels(start.cpu_kernels, torch.get_num_threads())
    dtype = compute_dtype(start.dtype)
    kv_dtype = dtype if start.kv_dtype == "auto" else getattr(torch, start.kv_dtype)
    source = ModelSource(start.model_kind, Path(start.model_path), start.model_name)
    checkpoint = open_checkpoint(source)
    config = checkpoint.config
    size = page_bytes(config, start.page_size, kv_dtype)
    # What can't be is refused before the weights are read, as far as it is known without probing.
    probed = start.host_kv_pages is None and start.host_kv_gib is None
    free = sys.maxsize if probed else 0
    asked_pages = kv_pages(size, start.host_kv_pages, start.host_kv_gib, free)
    context_length(start.max_model_len, config, asked_pages * start.page_size)
    model = load_model(checkpoint, dtype, lambda *counts: report(_loading(*counts)))
    pages = kv_pages(size, start.host_kv_pages, start.host_kv_gib, free_host_bytes())
    context = context_length(start.max_model_len, config, pages * start.page_size)
    if context < config.context_length and start.max_model_len is None:
        logger.warning("context cut to the KV pages: %d of %d tokens", context, config.context_length)
    storage = _allocate(config, pages, start.page_size, kv_dtype)
    attention = host_attention(config, storage, dtype, kernels)
    executor = TorchExecutor(ModelRunner(model, storage, attention), config.eos_token_ids)
    _warm_up(executor, pages)
    limits = Limits(
        num_pages=pages,
        page_size=start.page_size,
        max_running=start.max_running,
        max_batch_tokens=start.max_batch_tokens,
        context_length=context,
        eos_token_ids=config.eos_token_ids,
        prefix_caching=start.prefix_caching,
    )
    facts = EngineFacts(
        model_name=config.name,
        family=config.family,
        dtype=str(dtype).removeprefix("torch."),
        device_name=_device_name(kernels),
        vocab_size=config.vocab_size,
        context_length=context,
        eos_token_ids=config.eos_token_ids,
        page_size=start.page_size,
        host_kv_pages=pages,
        device_kv_pages=0,
        page_bytes=size,
        kv_dtype=str(kv_dtype).removeprefix("torch."),
        parameters=parameters(config),
        load_seconds=time.perf_counter() - began,
    )
    return LoadedEngine(executor, limits, facts)


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


def _device_name(kernels: Kernels | None) -> str:
    instructions = "torch" if kernels is None else kernels.instruction_set
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads, {instructions} kernels"


def _allocate(config: ModelConfig, pages: int, page_size: int, dtype: torch.dtype) -> KVStorage:
    try:
        return KVStorage(config, pages, page_size, dtype)
    except MemoryError as error:
        gib = pages * page_bytes(config, page_size, dtype) / GIB
        raise ModelError(f"no memory for {pages} KV pages ({gib:.1f} GiB)") from error


def _warm_up(executor: TorchExecutor, pages: int) -> None:
    """Compute a few tokens, so that the first request does not pay for what libraries set up lazily."""
    sample = SampleSpec(
        params=SamplingParams(max_tokens=1, temperature=0.0, seed=0),
        choice=0,
        output_length=0,
        prompt_length=1,
        history=None,
    )
    sequence = ScheduledSequence(
        sequence_id=SequenceId(0), token_ids=(0,), start=0, page_table=(pages - 1,), sample=sample
    )
    executor.submit(IterationPlan(0, (sequence,)))
    executor.collect()

"""Messages between the server and the engine process: MessagePack, one tagged union each way.

On the socket every message is a 4-byte big-endian length and that many bytes. A closed socket
means the other side is gone: the engine then exits, the server restarts the engine.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from scheduler.plan import Overlap, Timing
from scheduler.types import ChoiceOutput, Request, RequestId


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Server to engine, first and once: load this model. Fields not explained here are those of
    ``configs.settings.Settings``; None asks the engine to choose by probing.

    Answered by Loading messages and then EngineFacts, or by LoadFailed and the engine's exit.
    """

    model_kind: Literal["gguf", "huggingface"]
    model_path: str
    """Absolute; a file for ``gguf``, a directory for ``huggingface``."""
    model_name: str
    """Short name, where the checkpoint doesn't name itself."""
    dtype: Literal["auto", "float32", "bfloat16"]
    quantization: Literal["auto", "none", "int8", "int4"]
    max_model_len: int | None
    page_size: int
    host_kv_pages: int | None
    host_kv_gib: float | None
    kv_dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"]
    max_batch_tokens: int
    max_running: int
    prefix_caching: bool
    threads: int | None
    cpu_kernels: Literal["auto", "torch", "scalar", "avx2", "avx512", "avx512_bf16", "neon"]
    device: Literal["cpu", "emulated"]
    device_kv_pages: int | None
    emulate_profile: str | None
    profile: str | None
    plan_mode: Literal["auto", "accelerator-only", "asymmetric-pipeline", "async-overlap", "catch-up"]
    tpot_limit: float | None
    host_tpot_limit: float | None
    log_level: Literal["debug", "info", "warning", "error"]
    log_format: Literal["text", "json"] = "text"


class AddRequest(msgspec.Struct, frozen=True, tag="add"):
    """Server to engine: serve this request. Answered by one terminal output for each choice."""

    request: Request


class AbortRequest(msgspec.Struct, frozen=True, tag="abort"):
    """Server to engine: stop a request, or one choice of it. Unknown ids are ignored."""

    request_id: RequestId
    index: int | None = None


class FlushCache(msgspec.Struct, frozen=True, tag="flush"):
    """Server to engine: forget the prefixes that no live sequence uses."""


Order = AddRequest | AbortRequest | FlushCache
"""What the iteration loop takes in."""

ToEngine = Start | Order


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """Engine to server: what was learnt by probing. The model is loaded and requests are served."""

    model_name: str
    """As the checkpoint names itself, for the ready line."""
    family: str
    dtype: str
    """Compute type, ``float32`` or ``bfloat16``."""
    weights: str
    """How matrices are kept, the most frequent first: compute types and GGUF's names of packed ones."""
    weight_bytes: int
    """Memory that they take."""
    device_name: str
    vocab_size: int
    context_length: int
    """Most tokens, prompt and output together, one sequence may hold."""
    eos_token_ids: tuple[int, ...]
    page_size: int
    """Tokens in a KV page."""
    host_kv_pages: int
    device_kv_pages: int
    page_bytes: int
    kv_dtype: str
    """How keys and values are kept: a float type or ``int8``."""
    parameters: int
    load_seconds: float


class Loading(msgspec.Struct, frozen=True, kw_only=True, tag="loading"):
    """Engine to server: the checkpoint was checked and is being loaded."""

    tensors_done: int
    tensors_total: int
    bytes_done: int
    bytes_total: int


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    """Engine to server: the model can't be served; the engine exits. The message is for the user."""

    message: str


class SchedulerStats(msgspec.Struct, frozen=True, kw_only=True):
    """State after one iteration, for metrics. Totals count from the engine's start."""

    sequences_running: int
    sequences_waiting: int
    sequences_prefilling: int
    sequences_device: int
    """Running ones, by where their pages are."""
    sequences_host: int
    host_rows: int
    """Of the last plan."""
    host_pages_used: int
    host_pages_cached: int
    device_pages_used: int
    device_pages_cached: int
    preemptions_total: int
    """Sequences whose pages were taken, to be computed again."""
    migrations_in_total: int
    """Moves to the device that began."""
    migrations_out_total: int
    """Moves to the host that began."""
    migration_bytes_in_total: int
    migration_bytes_out_total: int
    prefix_queries_total: int
    """Prompt tokens looked up in the prefix index."""
    prefix_hits_total: int
    """Prompt tokens found there."""
    prefill_tokens: int
    """Prompt tokens computed in this iteration."""
    decode_tokens: int
    """Sequences that decoded in this iteration."""
    iteration_seconds: float
    plan: Overlap | None
    """How host rows were planned to advance; None if nothing was computed."""
    timing: Timing | None
    """What an executor with an accelerator measured."""


class IterationOutput(msgspec.Struct, frozen=True, tag="iteration"):
    """Engine to server: everything one iteration produced (one message an iteration)."""

    outputs: tuple[ChoiceOutput, ...]
    stats: SchedulerStats


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """Engine to server, about once a second: the process runs."""

    cpu_seconds: float
    """CPU time of all its threads since it started."""


FromEngine = EngineFacts | Loading | LoadFailed | IterationOutput | Heartbeat

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
"""A longer length prefix means a broken peer."""

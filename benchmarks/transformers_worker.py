"""Process in which Hugging Face transformers runs: reads cases, writes figures, one JSON line each.

    python -m benchmarks.transformers_worker MODEL DTYPE

It is a process of its own so that nothing of its threads or memory disturbs the other contenders.
"""

from __future__ import annotations

import sys
import time
from itertools import pairwise
from typing import Protocol, cast

import msgspec
import torch
from transformers import (
    AutoModelForCausalLM,
    GgufConfig,
    PreTrainedConfig,
    StoppingCriteria,
    StoppingCriteriaList,
)

from benchmarks.contender import Case, Figures, Latency
from engine.weights.source import resolve


class Job(msgspec.Struct, frozen=True):
    """A case to measure."""

    case: Case
    seed: int


class Generator(Protocol):
    """What is used of a transformers model; its own types don't say."""

    config: PreTrainedConfig

    def generate(self, inputs: torch.Tensor, **options: object) -> torch.Tensor:
        """Prompts and answers, [rows, tokens]."""


class _TokenTimes(StoppingCriteria):
    """Stops nothing; is called after each token of the batch."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor | None, **_: object) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool)


def load(model: str, dtype: str) -> Generator:
    """The model that ``tandem serve MODEL --dtype DTYPE`` serves."""
    source = resolve(model)
    options = {"dtype": getattr(torch, dtype), "local_files_only": True}
    if source.kind == "gguf":
        path, options["gguf_file"] = source.path.parent, source.path.name
        options["quantization_config"] = GgufConfig(dequantize=True)  # packed weights are far slower
    else:
        path = source.path
    return cast(Generator, AutoModelForCausalLM.from_pretrained(path, **options))


@torch.inference_mode()
def measure(model: Generator, job: Job) -> Figures:
    """Greedy ``generate`` on random token ids, one batch, answers of exactly the wanted length."""
    case = job.case
    ids = torch.randint(
        model.config.get_text_config().vocab_size,
        (case.streams, case.prompt_tokens),
        generator=torch.Generator().manual_seed(job.seed),
    )
    clock = _TokenTimes()
    started = time.perf_counter()
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=case.output_tokens,
        min_new_tokens=case.output_tokens,
        do_sample=False,
        pad_token_id=0,
        stopping_criteria=StoppingCriteriaList([clock]),
    )
    seconds = time.perf_counter() - started
    assert output.shape[1] == case.prompt_tokens + case.output_tokens
    first, last = clock.times[0], clock.times[-1]
    return Figures(
        decode=None if case.is_prefill else case.streams * (case.output_tokens - 1) / (last - first),
        output=case.streams * case.output_tokens / seconds,
        prefill=case.streams * case.prompt_tokens / (first - started),
        ttft=Latency.of([first - started]),
        inter_token=None if case.is_prefill else Latency.of([b - a for a, b in pairwise(clock.times)]),
    )


def main() -> None:
    """Load, say so, then work until standard input ends."""
    model = load(*sys.argv[1:3])
    print("ready", flush=True)
    for line in sys.stdin:
        figures = measure(model, msgspec.json.decode(line, type=Job))
        print(msgspec.json.encode(figures).decode(), flush=True)


if __name__ == "__main__":
    main()

"""Runs sequences through a model runner as the scheduler's plans would, page tables included."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from engine.attention.choice import host_attention
from engine.batch import make_batch
from engine.kernels.loader import load_kernels
from engine.kv_storage import KVStorage
from engine.model_loader import load_model
from engine.model_runner import ModelRunner
from engine.models.decoder import DecoderModel
from engine.models.native_matrices import NativeMatrices
from engine.native_runner import NativeRunner
from engine.weights.checkpoint import Checkpoint
from engine.weights.huggingface_checkpoint import HuggingFaceCheckpoint
from scheduler.plan import IterationPlan, SampleSpec, ScheduledSequence
from scheduler.types import SamplingParams, SequenceId

GREEDY = SampleSpec(
    params=SamplingParams(max_tokens=1000, temperature=0.0, seed=0),
    choice=0,
    output_length=0,
    prompt_length=1,
    history=None,
)


Runner = Literal["torch", "native"]


def load_directory(
    directory: Path, dtype: torch.dtype = torch.float32, runner: Runner = "torch", kernels: str = "auto"
) -> DecoderModel:
    """A Hugging Face directory's model, its matrices for the runner."""
    return load_checkpoint(HuggingFaceCheckpoint(directory), dtype, runner, kernels)


def load_checkpoint(
    checkpoint: Checkpoint, dtype: torch.dtype, runner: Runner, kernels: str = "auto", *, packed: bool = False
) -> DecoderModel:
    """Its matrices dequantised, unless ``packed``, and for the runner."""
    if runner == "torch" and not packed:
        return load_model(checkpoint, dtype)
    native = load_kernels(kernels, 1)
    assert native is not None
    return load_model(
        checkpoint, dtype, make_matrices=lambda source: NativeMatrices(source, dtype, native, packed=packed)
    )


class PagedModel:
    """Remembers each sequence's tokens computed so far and its pages, taken at random."""

    def __init__(
        self, model: DecoderModel, page_size: int = 16, num_pages: int = 64, *,
        kv_dtype: torch.dtype | None = None,
        runner: Runner = "torch", kernels: str = "auto", threads: int = 2,
    ) -> None:  # fmt: skip
        self.storage = KVStorage(model.config, num_pages, page_size, kv_dtype or model.dtype)
        # What a page holds before it is written must never be seen.
        self.storage.blocks.view(torch.uint8).fill_(0xFF)
        loaded = load_kernels(kernels, threads)
        self.runner: ModelRunner | NativeRunner
        if runner == "native":
            assert loaded is not None
            self.runner = NativeRunner(model, self.storage, loaded)
        else:
            attention = host_attention(model.config, self.storage, model.dtype, loaded)
            self.runner = ModelRunner(model, self.storage, attention)
        self._free = list(range(num_pages))
        random.Random(page_size).shuffle(self._free)
        self._lengths: dict[int, int] = {}
        self._tables: dict[int, list[int]] = {}
        self._iteration = 0

    def schedule(
        self, sequence_id: int, token_ids: list[int], sample: SampleSpec | None
    ) -> ScheduledSequence:
        """The sequence's next tokens, pages taken as needed."""
        start = self._lengths.get(sequence_id, 0)
        end = start + len(token_ids)
        table = self._tables.setdefault(sequence_id, [])
        while len(table) * self.storage.page_size < end:
            table.append(self._free.pop())
        self._lengths[sequence_id] = end
        return ScheduledSequence(
            sequence_id=SequenceId(sequence_id),
            token_ids=tuple(token_ids),
            start=start,
            page_table=tuple(table),
            sample=sample,
        )

    def plan(self, tokens: Mapping[int, list[int]], sample: SampleSpec | None = GREEDY) -> IterationPlan:
        """One iteration: next tokens by sequence id."""
        self._iteration += 1
        scheduled = tuple(self.schedule(each, ids, sample) for each, ids in tokens.items())
        return IterationPlan(self._iteration, scheduled)

    def last_logits(self, tokens: Mapping[int, list[int]]) -> dict[int, Tensor]:
        """Compute one iteration. For each sequence [vocab], the logits after its last token."""
        logits = self.runner.run(make_batch(self.plan(tokens).sequences, self.storage.page_size))
        return dict(zip(tokens, logits, strict=True))

    def all_logits(self, token_ids: list[int]) -> Tensor:
        """Compute the next tokens of sequence 0 in one iteration: [tokens, vocab]."""
        batch = make_batch(self.plan({0: token_ids}).sequences, self.storage.page_size)
        return self.runner.run(replace(batch, sample_rows=torch.arange(len(token_ids))))

    def release(self, sequence_id: int) -> None:
        """Give the sequence's pages back as they are, to be taken next."""
        self._free.extend(self._tables.pop(sequence_id))
        del self._lengths[sequence_id]

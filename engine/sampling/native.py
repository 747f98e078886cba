"""Sampling by the native kernels: the same rules, rows in parallel.

The reference is this package's numpy code. Sums of float64 weights are added up in another order, so where
a uniform number falls within about 1e-12 of a border between two tokens, or top_p's mass within that of a
prefix's, the two may choose neighbours. Neither depends on threads or batch mates.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Final

import numpy as np
from torch import Tensor

from engine.kernels.loader import Kernels
from engine.sampling.processing import banned_tokens
from scheduler.plan import SampleSpec
from scheduler.types import TokenLogprobs

_UINT64: Final = (1 << 64) - 1
_PACK: Final = struct.Struct("=dddqQqqqqdddqq").pack
"""RowSpec of engine/kernels/cpu/sampling/row_sampler.h."""


class NativeSampler:
    """Samples all rows of a batch in one native call."""

    def __init__(self, kernels: Kernels) -> None:
        """Rows are shared among the threads of ``kernels``."""
        self._native = kernels.batch_sampler()
        self._results = _Results(0, 0)

    def sample(
        self, logits: Tensor, specs: Sequence[SampleSpec], eos_token_ids: tuple[int, ...]
    ) -> list[tuple[int, TokenLogprobs | None]]:
        """See ``engine.sampler.sample``; a row without a usable distribution has token -1.

        Args:
            logits: [rows, vocabulary], float32, in host memory.
            specs: one for each row.
            eos_token_ids: end-of-sequence tokens.
        """
        logits = logits.contiguous()
        rows, vocabulary = logits.shape
        width = max([min(one.params.logprobs or 0, vocabulary) for one in specs], default=0)
        results = self._results
        if results.rows < rows or results.width < width:
            results = self._results = _Results(max(rows, results.rows), max(width, results.width))
        changes = _Changes(specs, eos_token_ids)
        self._native.sample(
            logits.data_ptr(),
            vocabulary,
            rows,
            vocabulary,
            changes.packed,
            added_ids=changes.ids.ctypes.data,
            additions=changes.additions.ctypes.data,
            history=changes.history.ctypes.data,
            **results.addresses,
            width=results.width,
        )
        tokens: list[int] = results.tokens[:rows].tolist()
        if all(one.params.logprobs is None for one in specs):
            return [(token, None) for token in tokens]
        return [
            (token, results.logprobs(row, token, spec.params.logprobs, vocabulary))
            for row, (token, spec) in enumerate(zip(tokens, specs, strict=True))
        ]


class _Changes:
    """The rows' specs, and what changes logits: additions and histories, the rows one after another."""

    def __init__(self, specs: Sequence[SampleSpec], eos_token_ids: tuple[int, ...]) -> None:
        packed: list[bytes] = []
        additions: list[tuple[int, float]] = []
        history: list[int] = []
        for spec in specs:
            params = spec.params
            added = len(additions)
            if params.logit_bias or params.min_tokens > spec.output_length:
                additions += params.logit_bias.items()
                additions += [(token, -math.inf) for token in banned_tokens(spec, eos_token_ids)]
            prompt = output = 0
            if params.needs_history and spec.history is not None:
                prompt, output = spec.prompt_length, len(spec.history) - spec.prompt_length
                history += spec.history
            packed.append(
                _PACK(
                    params.temperature,
                    params.top_p,
                    params.min_p,
                    params.top_k,
                    params.seed & _UINT64,
                    spec.choice,
                    spec.output_length,
                    -1 if params.logprobs is None else params.logprobs,
                    len(additions) - added,
                    params.repetition_penalty,
                    params.presence_penalty,
                    params.frequency_penalty,
                    prompt,
                    output,
                )
            )
        self.packed = b"".join(packed)
        self.ids = np.array([token for token, _addition in additions], np.int64)
        self.additions = np.array([addition for _token, addition in additions], np.float64)
        self.history = np.fromiter(history, np.int64, len(history))


class _Results:
    """Memory that results are written to, used again from batch to batch."""

    def __init__(self, rows: int, width: int) -> None:
        self.rows = rows
        self.width = width
        self.tokens = np.empty(rows, np.int64)
        self._logprobs = np.empty(rows)
        self._top_ids = np.empty((rows, width), np.int64)
        self._top_logprobs = np.empty((rows, width))
        self.addresses = {
            "tokens": self.tokens.ctypes.data,
            "logprobs": self._logprobs.ctypes.data,
            "top_ids": self._top_ids.ctypes.data,
            "top_logprobs": self._top_logprobs.ctypes.data,
        }

    def logprobs(self, row: int, token: int, count: int | None, vocabulary: int) -> TokenLogprobs | None:
        """What one row was asked for."""
        if count is None or token < 0:
            return None
        count = min(count, vocabulary)
        ids, logprobs = self._top_ids[row, :count].tolist(), self._top_logprobs[row, :count].tolist()
        return TokenLogprobs(
            token_id=token, logprob=float(self._logprobs[row]), top=tuple(zip(ids, logprobs, strict=True))
        )

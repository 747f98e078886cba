"""An executor whose every token depends on all tokens before it, read back through the pages.

KV pages hold (position, token). A wrongly shared, freed or unwritten page changes the next token
or fails at once; ``expected_output`` computes the same tokens from the request alone.
"""

from __future__ import annotations

import hashlib

from scheduler.plan import IterationPlan, IterationResult, SampledToken, ScheduledSequence
from scheduler.types import Request

VOCABULARY = 50


def next_token(tokens: list[int], choice: int, seed: int) -> int:
    """A token that depends on everything before it."""
    text = repr((tokens, choice, seed)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") % VOCABULARY


def expected_output(request: Request, choice: int, eos: int | None, context_length: int) -> list[int]:
    """The tokens of one choice, computed without pages or batches."""
    tokens = list(request.prompt_token_ids)
    while True:
        tokens.append(next_token(tokens, choice, request.sampling.seed))
        output = tokens[len(request.prompt_token_ids) :]
        stopped = tokens[-1] == eos and not request.sampling.ignore_eos
        if stopped or len(output) >= request.sampling.max_tokens or len(tokens) >= context_length:
            return output


class HashExecutor:
    """Implements scheduler.executor.Executor over a dictionary of pages."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.kv: dict[tuple[int, int], tuple[int, int]] = {}
        self.plans: list[IterationPlan] = []

    def submit(self, plan: IterationPlan) -> None:
        self.plans.append(plan)

    def collect(self) -> IterationResult:
        plan = self.plans[-1]
        self._check_no_page_is_written_twice(plan)
        for scheduled in plan.sequences:
            for offset, token in enumerate(scheduled.token_ids):
                position = scheduled.start + offset
                self.kv[self._slot(scheduled, position)] = (position, token)
        tokens = [self._sample(scheduled) for scheduled in plan.sequences if scheduled.sample is not None]
        return IterationResult(plan.iteration, tuple(tokens))

    def close(self) -> None:
        self.kv.clear()

    def _slot(self, scheduled: ScheduledSequence, position: int) -> tuple[int, int]:
        return scheduled.page_table[position // self.page_size], position % self.page_size

    def _check_no_page_is_written_twice(self, plan: IterationPlan) -> None:
        written = [
            self._slot(scheduled, scheduled.start + offset)
            for scheduled in plan.sequences
            for offset in range(len(scheduled.token_ids))
        ]
        assert len(written) == len(set(written)), "two sequences write one slot"

    def _sample(self, scheduled: ScheduledSequence) -> SampledToken:
        assert scheduled.sample is not None
        tokens = []
        for position in range(scheduled.start + len(scheduled.token_ids)):
            kept_position, token = self.kv[self._slot(scheduled, position)]
            assert kept_position == position
            tokens.append(token)
        spec = scheduled.sample
        return SampledToken(scheduled.sequence_id, next_token(tokens, spec.choice, spec.params.seed))

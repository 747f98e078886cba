"""The executor that computes with torch on this process's CPU threads."""

from __future__ import annotations

from engine.batch import make_batch
from engine.runner import Runner
from engine.sampling.native import NativeSampler
from engine.wanted_logits import tokens_and_scores, wanted_of
from scheduler.plan import IterationPlan, IterationResult


class TorchExecutor:
    """See ``scheduler.executor.Executor``. Keeps nothing of a sequence but its pages: plans carry the rest.

    The work is done in ``submit``: a thread of its own would fight the iteration loop for the
    interpreter between any two of its many short operations.
    """

    def __init__(
        self, runner: Runner, eos_token_ids: tuple[int, ...], native: NativeSampler | None = None
    ) -> None:
        """``eos_token_ids`` are banned before ``min_tokens``; without ``native`` numpy samples."""
        self._runner: Runner | None = runner
        self._eos_token_ids = eos_token_ids
        self._native = native
        self._result: IterationResult | None = None

    def submit(self, plan: IterationPlan) -> None:
        """Compute ``plan``.

        Raises:
            RuntimeError: the result of another one has not been collected, or the executor was closed.
            ValueError: a sequence of it has no tokens or too few pages.
        """
        if self._runner is None:
            raise RuntimeError("the executor is closed")
        if self._result is not None:
            raise RuntimeError(f"iteration {self._result.iteration} has not been collected")
        logits = self._runner.run(make_batch(plan.sequences, self._runner.storage.page_size))
        wanted = wanted_of(plan.sequences)
        tokens, scores = tokens_and_scores(logits, wanted, self._eos_token_ids, self._native)
        self._result = IterationResult(plan.iteration, tuple(tokens), scores=tuple(scores))

    def collect(self) -> IterationResult:
        """The result of the submitted plan.

        Raises:
            RuntimeError: there is none.
        """
        result, self._result = self._result, None
        if result is None:
            raise RuntimeError("no iteration is in flight")
        return result

    def close(self) -> None:
        """Let go of model and pages."""
        self._runner = None
        self._result = None

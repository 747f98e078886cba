"""The outputs of one request on their way from the engine's reader to the coroutine that serves it."""

from __future__ import annotations

import asyncio
from typing import Self

from scheduler.types import ChoiceOutput, FinishReason, Request
from server.engine_client.protocol import EngineDied


class QueuedOutputStream:
    """Async iterator of batches, one output for each choice in a batch; for one consumer.

    Feeding never waits. What a slow consumer leaves is merged when it comes back, so the stream
    holds at most the ``n * max_tokens`` tokens of its request.
    """

    def __init__(self, request: Request) -> None:
        self.request_id = request.request_id
        self.prompt_tokens = len(request.prompt_token_ids)
        self._unfinished = set(range(request.n))
        self._pending: list[ChoiceOutput] = []
        self._died = False
        self._changed = asyncio.Event()

    @property
    def unfinished_choices(self) -> int:
        """Choices whose last output hasn't been fed."""
        return len(self._unfinished)

    def feed(self, output: ChoiceOutput) -> None:
        """Add what one iteration made of a choice; nothing follows a choice's last output."""
        if output.index not in self._unfinished:
            return
        if output.finish_reason is not None:
            self._unfinished.discard(output.index)
        self._pending.append(output)
        self._changed.set()

    def finish(self, reason: FinishReason, index: int | None = None, error: str = "") -> bool:
        """End one unfinished choice, or all of them.

        Returns:
            Whether there was anything to end.
        """
        ended = sorted(self._unfinished if index is None else self._unfinished & {index})
        for choice in ended:
            self.feed(
                ChoiceOutput(request_id=self.request_id, index=choice, finish_reason=reason, error=error)
            )
        return bool(ended)

    def fail(self) -> None:
        """The engine is gone: raise EngineDied once what has arrived was consumed."""
        self._died = bool(self._unfinished)
        self._changed.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[ChoiceOutput, ...]:
        while not self._pending:
            if self._died:
                raise EngineDied("the engine process ended while it was serving this request")
            if not self._unfinished:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        batch, self._pending = _merge(self._pending), []
        return batch


def _merge(outputs: list[ChoiceOutput]) -> tuple[ChoiceOutput, ...]:
    """One output for each choice, in order of first appearance."""
    by_index: dict[int, list[ChoiceOutput]] = {}
    for output in outputs:
        by_index.setdefault(output.index, []).append(output)
    return tuple(parts[0] if len(parts) == 1 else _join(parts) for parts in by_index.values())


def _join(parts: list[ChoiceOutput]) -> ChoiceOutput:
    """All their tokens came together, so the tier is that of the last one."""
    tiers = [part.tier for part in parts if part.tier is not None]
    return ChoiceOutput(
        request_id=parts[0].request_id,
        index=parts[0].index,
        token_ids=tuple(token for part in parts for token in part.token_ids),
        logprobs=tuple(entry for part in parts for entry in part.logprobs),
        prompt_logprobs=tuple(entry for part in parts for entry in part.prompt_logprobs),
        finish_reason=parts[-1].finish_reason,
        cached_tokens=parts[0].cached_tokens,
        scheduled_at=parts[0].scheduled_at,
        tier=tiers[-1] if tiers else None,
        error=parts[-1].error,
    )

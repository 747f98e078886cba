"""The loop that drives everything: take requests in, plan, compute, commit, publish.

One loop runs in every surrounding: the clock, the executor and both ends of the conversation
with the server are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from scheduler.clock import Clock
from scheduler.executor import Executor
from scheduler.messages import AbortRequest, AddRequest, FlushCache, IterationOutput, Order
from scheduler.plan import IterationPlan
from scheduler.scheduler import Scheduler
from scheduler.types import ChoiceOutput, FinishReason, Request


class Inbox(Protocol):
    """Messages from the server."""

    def take(self, wait: bool) -> Iterable[Order]:
        """Everything that arrived; with ``wait``, blocks until something has.

        Raises:
            EOFError: the server is gone.
        """


class IterationLoop:
    """Owns the scheduler and the executor; nobody else touches them."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        inbox: Inbox,
        publish: Callable[[IterationOutput], None],
    ) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._inbox = inbox
        self._publish = publish

    def run(self) -> None:
        """Step until the server is gone."""
        try:
            while True:
                self.step()
        except EOFError:
            self._executor.close()

    def step(self) -> None:
        """One iteration, or, with nothing to compute, wait for messages.

        Messages that arrived while the iteration ran are taken in before its commit, so that an
        abort frees its pages at that very commit. ``publish`` only hands over: encoding and sending
        happen beside the next iteration.
        """
        started = self._clock.now()
        plan = self._scheduler.schedule(started)
        if plan is None:
            self._announce(self._take_in(wait=True), None, 0.0)
            return
        self._executor.submit(plan)
        self._scheduler.think()
        result = self._executor.collect()
        ended = self._take_in(wait=False)
        outputs = self._scheduler.commit(plan, result)
        self._announce(ended + outputs, plan, self._clock.now() - started)

    def _take_in(self, wait: bool) -> tuple[ChoiceOutput, ...]:
        ended: tuple[ChoiceOutput, ...] = ()
        for message in self._inbox.take(wait):
            match message:
                case AddRequest(request):
                    ended += self._add(request)
                case AbortRequest(request_id, index):
                    ended += self._scheduler.abort(request_id, index)
                case FlushCache():
                    self._scheduler.forget_prefixes()
        return ended

    def _add(self, request: Request) -> tuple[ChoiceOutput, ...]:
        """A request the scheduler refuses ends with an error, and only that request."""
        try:
            self._scheduler.add(request)
        except ValueError as error:
            return tuple(
                ChoiceOutput(
                    request_id=request.request_id,
                    index=index,
                    finish_reason=FinishReason.ERROR,
                    error=str(error),
                )
                for index in range(request.n)
            )
        return ()

    def _announce(
        self, outputs: tuple[ChoiceOutput, ...], plan: IterationPlan | None, seconds: float
    ) -> None:
        self._publish(IterationOutput(outputs, self._scheduler.stats(plan, seconds)))

"""The executor of machines with an accelerator: two KV tiers, and attention on both sides at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from engine.devices.pace import sharpen_sleep
from engine.hybrid.host_attention import HostAttention
from engine.hybrid.iteration import Iteration, Machine
from scheduler.plan import IterationPlan, IterationResult, Timing
from scheduler.work import Stage

_DEVIATIONS = 8.0
"""A wave that misses the main batch once is out of step for the rest of the iteration, so what is planned on
must hold nearly always, and lateness has a long tail: with a mean deviation of 0.05 ms one result in ten took
0.4 ms more than usual."""


class HybridExecutor:
    """See ``scheduler.executor.Executor``. A thread of its own launches what the accelerator is to do.

    Between iterations it keeps of each host row: its residual, its layer, and what the CPU does for it.
    """

    def __init__(self, machine: Machine, host_attention: HostAttention, warn: Callable[[], None]) -> None:
        """``host_attention`` is that of the machine's waves; ``warn`` is called after every iteration."""
        self._warn = warn
        self._machine: Machine | None = machine
        self._host_attention = host_attention
        self._thread = ThreadPoolExecutor(1, "executor", initializer=sharpen_sleep)
        self._running: Future[IterationResult] | None = None

    def submit(self, plan: IterationPlan) -> None:
        """Start computing ``plan``.

        Raises:
            RuntimeError: the result of another one has not been collected, or the executor was closed.
        """
        if self._machine is None:
            raise RuntimeError("the executor is closed")
        if self._running is not None:
            raise RuntimeError("the iteration before has not been collected")
        self._running = self._thread.submit(self._run, self._machine, plan)

    def collect(self) -> IterationResult:
        """The result of the submitted plan, once it is there.

        Raises:
            RuntimeError: there is none.
            ValueError: the plan asked for what can't be.
        """
        running, self._running = self._running, None
        if running is None:
            raise RuntimeError("no iteration is in flight")
        return running.result()

    def close(self) -> None:
        """Let the plan in flight end, then end the threads; attention on the CPU that has not begun won't."""
        machine, self._machine = self._machine, None
        if machine is None:
            return
        self._thread.shutdown()
        for wave in machine.host_rows:
            wave.cancel()
        self._host_attention.close()
        machine.device.close()

    def _run(self, machine: Machine, plan: IterationPlan) -> IterationResult:
        before = self._read(machine)
        machine.device.begin()
        iteration = Iteration(machine, plan)
        tokens = iteration.run()
        machine.device.end()
        self._warn()
        timing = self._read(machine).since(before, bool(plan.host_rows), iteration)
        return IterationResult(
            plan.iteration,
            tokens,
            dropped=machine.host_rows.dropped(),
            migrated=machine.migrations.done(),
            waves=machine.host_rows.progress(),
            timing=timing,
            scores=iteration.scores,
        )

    def _read(self, machine: Machine) -> _Readings:
        stages = {**machine.device.busy_seconds(), Stage.HOST_ATTENTION: self._host_attention.busy_seconds()}
        idle, waiting = machine.device.idle_seconds()
        # Who counts on a result must count on it being late by as much as results lately were.
        lead = machine.pacer.margin + _DEVIATIONS * self._host_attention.jitter()
        return _Readings(machine.clock.now(), stages, machine.meter.predicted(), idle, waiting, lead)


class _Readings:
    """All counters at one time."""

    def __init__(
        self,
        now: float,
        stages: Mapping[Stage, float],
        predicted: Mapping[Stage, float],
        idle: float,
        waiting: float,
        lead: float,
    ) -> None:
        self._now = now
        self._stages = stages
        self._predicted = predicted
        self._idle = idle
        self._waiting = waiting
        self._lead = lead

    def since(self, before: _Readings, host_rows: bool, iteration: Iteration) -> Timing:
        total = self._now - before._now
        stages = _difference(self._stages, before._stages)
        return Timing(
            total=total,
            stages=stages,
            predicted=_difference(self._predicted, before._predicted),
            accelerator_idle=self._idle - before._idle,
            waited_for_host=self._waiting - before._waiting,
            host_idle=max(0.0, total - stages.get(Stage.HOST_ATTENTION, 0.0)) if host_rows else 0.0,
            lead=self._lead,
            passes=iteration.passes,
            late=iteration.late,
        )


def _difference(after: Mapping[Stage, float], before: Mapping[Stage, float]) -> dict[Stage, float]:
    return {stage: seconds - before.get(stage, 0.0) for stage, seconds in after.items()}

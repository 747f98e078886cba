"""What the engine's iterations tell: how they were planned, what was predicted, where the time went."""

from __future__ import annotations

import logging

from scheduler.messages import SchedulerStats
from scheduler.plan import Overlap, PlanMode, Timing
from scheduler.work import Stage
from server.metrics.families import Families

KINDS = ("prefill", "decode", "mixed")
CPU_ONLY = "cpu_only"
"""Plan mode where there is no accelerator."""
ACCELERATOR_MODES = tuple(mode.replace("-", "_") for mode in PlanMode)
"""Plan modes where there is one."""

ITERATION_BUCKETS = (
    *(0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08),
    *(0.1, 0.15, 0.2, 0.3, 0.5, 1, 2),
)
RATIO_BUCKETS = (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.3, 1.5, 2, 3, 6)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

logger = logging.getLogger(__name__)


class IterationMetrics:
    """Belongs to the event loop's thread, which tells it of every iteration once."""

    def __init__(self, families: Families) -> None:
        self._make_plan_metrics(families)
        self._make_time_metrics(families)
        self._mode = ""

    def observe(self, stats: SchedulerStats) -> None:
        """Account for one iteration of the engine."""
        if stats.timing is not None:
            self._observe_timing(stats.timing, host_rows=stats.host_rows > 0)
        if stats.plan is None or not (stats.prefill_tokens or stats.decode_tokens or stats.host_rows):
            return
        mode = CPU_ONLY if stats.timing is None else stats.plan.mode.replace("-", "_")
        both = stats.prefill_tokens and stats.decode_tokens
        kind = "mixed" if both else "prefill" if stats.prefill_tokens else "decode"
        self.iterations(mode, kind).inc()
        self.iteration_seconds(mode, kind).observe(stats.iteration_seconds)
        if tokens := stats.prefill_tokens + stats.decode_tokens:
            self.batch_tokens(kind).observe(tokens)
        if stats.timing is not None and stats.plan.seconds > 0:
            self.predicted_seconds(mode).observe(stats.plan.seconds)
            self.time_ratio(mode).observe(stats.timing.total / stats.plan.seconds)
        if mode != self._mode:
            self._change_mode(mode, stats.plan)

    def _make_plan_metrics(self, families: Families) -> None:
        modes = (CPU_ONLY, *ACCELERATOR_MODES)
        self.iterations = families.counter(
            "iterations_total", "Iterations of the engine", plan_mode=modes, kind=KINDS
        )
        self.iteration_seconds = families.histogram(
            "iteration_seconds", "Time of one iteration", ITERATION_BUCKETS, plan_mode=modes, kind=KINDS
        )
        self.batch_tokens = families.histogram(
            "batch_tokens", "Tokens computed in one iteration", BATCH_BUCKETS, kind=KINDS
        )
        self.plan_mode = families.gauge(
            "plan_mode", "1 for the mode of the latest iteration that computed anything", plan_mode=modes
        )
        self.predicted_seconds = families.histogram(
            "iteration_predicted_seconds",
            "The planner's prediction for an iteration",
            ITERATION_BUCKETS,
            plan_mode=ACCELERATOR_MODES,
        )
        self.time_ratio = families.histogram(
            "iteration_time_ratio",
            "An iteration's measured time, in parts of the predicted one",
            RATIO_BUCKETS,
            plan_mode=ACCELERATOR_MODES,
        )

    def _make_time_metrics(self, families: Families) -> None:
        counter = families.counter
        self.executor_seconds = counter(
            "executor_seconds_total", "Time of iterations beside an accelerator", host_rows=("false", "true")
        )
        self.stage_seconds = counter(
            "stage_seconds_total", "Time in which a stage of the computation ran", stage=tuple(Stage)
        )
        self.accelerator_idle = counter(
            "accelerator_idle_seconds_total", "Time of iterations in which the accelerator had no work"
        )
        self.waited_for_host = counter(
            "accelerator_waited_for_host_seconds_total",
            "The part of that in which work stood waiting for a result of the CPU",
        )
        self.host_idle = counter(
            "host_idle_seconds_total", "Time of iterations with host rows in which the CPU had none to attend"
        )
        self.passes = counter("catch_up_passes_total", "Passes that host rows took of their own")
        self.late = counter("late_results_total", "Host rows that missed their layer of the main batch")

    def _observe_timing(self, timing: Timing, host_rows: bool) -> None:
        self.executor_seconds("true" if host_rows else "false").inc(timing.total)
        for stage, seconds in timing.stages.items():
            self.stage_seconds(stage).inc(seconds)
        self.accelerator_idle().inc(timing.accelerator_idle)
        self.waited_for_host().inc(timing.waited_for_host)
        self.host_idle().inc(timing.host_idle)
        self.passes().inc(timing.passes)
        self.late().inc(timing.late)

    def _change_mode(self, mode: str, plan: Overlap) -> None:
        """The reason is free text, so it goes to the log."""
        if self._mode:
            self.plan_mode(self._mode).set(0)
        self.plan_mode(mode).set(1)
        self._mode = mode
        if mode != CPU_ONLY:
            rejected = ", ".join(f"{name} {rate:.0f} tokens/s" for name, rate in plan.rejected)
            logger.debug("plan mode %s: %s; rejected: %s", mode, plan.reason, rejected or "none")

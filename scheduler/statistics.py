"""The scheduler's state in figures, for metrics."""

from __future__ import annotations

from scheduler.limits import Limits
from scheduler.messages import SchedulerStats
from scheduler.plan import IterationPlan, Timing
from scheduler.residents import Residents
from scheduler.tier import Tier


def scheduler_stats(
    residents: Residents,
    limits: Limits,
    plan: IterationPlan | None,
    *,
    seconds: float,
    host_tokens: int,
    timing: Timing | None,
    prefix: tuple[int, int],
) -> SchedulerStats:
    """State after one iteration.

    Args:
        residents: who is where.
        limits: what may be handed out.
        plan: what was computed; None if nothing was.
        seconds: it took.
        host_tokens: sampled for host rows.
        timing: what the executor measured.
        prefix: prompt tokens looked up in the prefix index, and found there.
    """
    scheduled = plan.sequences if plan is not None else ()
    decoding = sum(one.sample is not None and one.sample.output_length > 0 for one in scheduled)
    tiers, running = residents.tiers, residents.running
    on_device = sum(sequence.tier is Tier.DEVICE for sequence in running) if limits.has_device else 0
    host = tiers[Tier.HOST].pool
    device = tiers[Tier.DEVICE].pool if limits.has_device else None
    return SchedulerStats(
        sequences_running=len(running),
        sequences_waiting=len(residents.waiting) + residents.requeued,
        sequences_prefilling=sum(sequence.remaining > 1 for sequence in running),
        sequences_device=on_device,
        sequences_host=len(running) - on_device,
        host_rows=len(plan.host_rows) if plan is not None else 0,
        host_pages_used=host.held,
        host_pages_cached=host.cached,
        device_pages_used=device.held if device is not None else 0,
        device_pages_cached=device.cached if device is not None else 0,
        preemptions_total=residents.preemptions,
        migrations_in_total=tiers.moved[Tier.DEVICE],
        migrations_out_total=tiers.moved[Tier.HOST],
        migration_bytes_in_total=tiers.moved_bytes[Tier.DEVICE],
        migration_bytes_out_total=tiers.moved_bytes[Tier.HOST],
        prefix_queries_total=prefix[0],
        prefix_hits_total=prefix[1],
        prefill_tokens=sum(len(one.token_ids) for one in scheduled) - decoding,
        decode_tokens=decoding + (host_tokens if plan is not None else 0),
        iteration_seconds=seconds,
        plan=plan.overlap if plan is not None else None,
        timing=timing if plan is not None else None,
    )

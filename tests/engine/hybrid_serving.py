"""Scheduler, planner and hybrid executor together, as the engine process runs them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import torch

from engine.attention.choice import host_attention
from engine.clock import MonotonicClock
from engine.devices.base import Device
from engine.hybrid.build import HybridParts, hybrid_executor
from engine.hybrid.executor import HybridExecutor
from engine.kernels.loader import load_kernels
from engine.kv_storage import KVStorage
from engine.models.decoder import DecoderModel
from scheduler.cost_model import CostModel
from scheduler.learning_planner import LearningPlanner
from scheduler.overlap_planner import PlanLimits
from scheduler.plan import IterationPlan, IterationResult, PlanMode
from scheduler.scheduler import Limits, Scheduler
from scheduler.sequence import Sequence
from scheduler.tier import Tier
from scheduler.types import ChoiceOutput, Request, RequestId, SamplingParams

PAGE_SIZE = 4
MODES = (None, *PlanMode)
OVERLAPPING = tuple(mode for mode in MODES if mode is not PlanMode.ACCELERATOR_ONLY)

Tokens = dict[tuple[str, int], list[int]]
"""Output by request and choice."""
Arrivals = Mapping[int, Iterable[Request]]
"""Requests by the iteration before which they come."""


def draw_requests(
    count: int, seed: int, vocabulary: int, longest: int, outputs: tuple[int, int], n: int = 2
) -> list[Request]:
    """Prompts of up to ``longest`` tokens; a third begin like others; every seventh has ``n`` choices."""
    rng = random.Random(seed)
    stems = [tuple(rng.randrange(3, vocabulary) for _ in range(longest // 2)) for _ in range(3)]
    requests = []
    for number in range(count):
        length = rng.randint(1, longest)
        stem = rng.choice(stems)[: length - 1] if rng.random() < 1 / 3 else ()
        rest = tuple(rng.randrange(3, vocabulary) for _ in range(length - len(stem)))
        requests.append(
            make_request(f"r{number}", stem + rest, rng.randint(*outputs), n if number % 7 == 3 else 1)
        )
    return requests


def make_request(name: str, prompt: tuple[int, ...], output: int, n: int = 1) -> Request:
    """Greedy, and never at its end before ``output`` tokens."""
    sampling = SamplingParams(max_tokens=output, temperature=0.0, seed=0, ignore_eos=True)
    return Request(request_id=RequestId(name), prompt_token_ids=prompt, sampling=sampling, n=n)


def pages_needed(requests: Iterable[Request], page_size: int = PAGE_SIZE) -> int:
    """To hold all of them at once, to their ends."""
    return sum(one.n * -(-length(one) // page_size) for one in requests)


def length(request: Request) -> int:
    """Of prompt and output."""
    return len(request.prompt_token_ids) + request.sampling.max_tokens


def spread(requests: Iterable[Request], seed: int, iterations: int) -> dict[int, list[Request]]:
    """Have them come at random."""
    rng = random.Random(seed)
    arrivals: dict[int, list[Request]] = {}
    for request in requests:
        arrivals.setdefault(rng.randrange(iterations), []).append(request)
    return arrivals


def make_limits(
    requests: Iterable[Request],
    mode: PlanMode | None,
    *,
    device: float,
    host: float,
    page_size: int = PAGE_SIZE,
) -> Limits:
    """Tiers that hold these shares of what is needed; one sequence at least where it has to run."""
    requests = tuple(requests)
    context = max(map(length, requests)) + 1
    one = -(-context // page_size)
    need = pages_needed(requests, page_size)
    host_decodes = mode is not PlanMode.ACCELERATOR_ONLY
    return Limits(
        host_pages=max(int(host * need), one if host_decodes else 1),
        device_pages=max(int(device * need), 1 if host_decodes else one),
        page_size=page_size,
        page_bytes=1000,
        max_running=64,
        max_batch_tokens=256,
        context_length=context,
        host_decodes=host_decodes,
    )


def make_executor(
    model: DecoderModel, device: Device, limits: Limits, native: bool, repeats: int, costs: CostModel | None
) -> tuple[HybridExecutor, dict[Tier, KVStorage]]:
    """With pages that hold no numbers yet."""
    kernels = load_kernels("auto", 1) if native else None
    counts = {Tier.HOST: limits.host_pages, Tier.DEVICE: limits.device_pages}
    tiers = {
        tier: KVStorage(model.config, count, limits.page_size, model.dtype) for tier, count in counts.items()
    }
    for storage in tiers.values():
        storage.blocks.fill_(torch.nan)
    accelerator = load_kernels("auto", 1) if native else None
    parts = HybridParts(
        model=model,
        device=device,
        tiers=tiers,
        attention={
            tier: host_attention(model.config, storage, model.dtype, accelerator)
            for tier, storage in tiers.items()
        },
        host_kernels=kernels,
        costs=costs,
        clock=MonotonicClock(),
        eos_token_ids=(),
        host_attention_repeats=repeats,
    )
    return hybrid_executor(parts), tiers


class Serving:
    """Serves requests to their ends, and spoils every page as soon as it is free."""

    def __init__(
        self, model: DecoderModel, device: Device, limits: Limits, costs: CostModel,
        mode: PlanMode | None = None, *, native: bool = False, repeats: int = 1, paced: bool = False,
    ) -> None:  # fmt: skip
        """``costs`` are the planner's, and the executor's too if the device is ``paced`` by them."""
        self.executor, self._tiers = make_executor(
            model, device, limits, native, repeats, costs if paced else None
        )
        self.scheduler = Scheduler(limits, LearningPlanner(costs, PlanLimits(mode=mode)), costs)
        self._device = device
        self._free: dict[Tier, set[int]] = {tier: set() for tier in Tier}
        self.iteration = 0
        self.tokens: Tokens = {}
        self.ended: dict[tuple[str, int], str] = {}
        self.counts: Counter[str] = Counter()
        """Host tokens, passes, late rows; iterations with host rows, by mode."""
        self.when: dict[str, list[int]] = {}
        """The iterations in which a request got tokens."""
        self.waited_for_host = 0.0

    def run(self, arrivals: Arrivals, meanwhile: Callable[[], None] = lambda: None) -> Tokens:
        """Until nothing is left to be done; ``meanwhile`` is called while every iteration runs."""
        last = max(arrivals, default=0)
        while True:
            for request in arrivals.get(self.iteration, ()):
                self.scheduler.add(request)
            if not self.step(meanwhile) and self.iteration > last:
                return self.tokens
            assert self.iteration < 20_000, "no progress"

    def step(self, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """One iteration; False if there was nothing to compute."""
        self.iteration += 1
        plan = self.scheduler.schedule()
        if plan is None:
            return False
        self.executor.submit(plan)
        self.scheduler.think()
        meanwhile()
        result = self.executor.collect()
        self._count(plan, result)
        self._take(self.scheduler.commit(plan, result))
        self._spoil()
        return True

    def abort(self, request_id: RequestId) -> None:
        """Whatever it is in."""
        self._take(self.scheduler.abort(request_id))

    def close(self) -> None:
        """End; every page must have been given back."""
        self.executor.close()
        stats = self.scheduler.stats(None, 0.0)
        assert (stats.device_pages_used, stats.host_pages_used) == (0, 0)
        assert (stats.sequences_running, stats.sequences_waiting) == (0, 0)

    @property
    def running(self) -> list[Sequence]:
        """Those that hold pages."""
        return self.scheduler._residents.running

    @property
    def preemptions(self) -> int:
        """So far."""
        return self.scheduler.stats(None, 0.0).preemptions_total

    @property
    def migrations(self) -> tuple[int, int]:
        """So far: to the device, to the host."""
        stats = self.scheduler.stats(None, 0.0)
        return stats.migrations_in_total, stats.migrations_out_total

    def _take(self, outputs: Iterable[ChoiceOutput]) -> None:
        for output in outputs:
            assert not output.error
            choice = (output.request_id, output.index)
            self.tokens.setdefault(choice, []).extend(output.token_ids)
            self.when.setdefault(output.request_id, []).extend(self.iteration for _token in output.token_ids)
            if output.finish_reason is not None:
                self.ended[choice] = output.finish_reason

    def _count(self, plan: IterationPlan, result: IterationResult) -> None:
        timing = result.timing
        assert timing is not None
        self.waited_for_host += timing.waited_for_host
        rows = {row.sequence_id for row in plan.host_rows}
        self.counts["host tokens"] += sum(token.sequence_id in rows for token in result.tokens)
        self.counts["passes"] += timing.passes
        self.counts["late"] += timing.late
        if rows:
            self.counts[plan.overlap.mode] += 1

    def _spoil(self) -> None:
        """Whoever still reads a page that was freed gets no numbers; a checked device sees whoever may."""
        for tier, storage in self._tiers.items():
            pages = self.scheduler._residents.tiers[tier]
            free = {
                page
                for page in range(storage.num_pages)
                if pages.pool.holders(page) == 0 and page not in pages.index
            }
            freed = sorted(free - self._free[tier])
            self._device.host_touches(writes=[(tier, page) for page in freed])
            storage.blocks.view(storage.num_pages, -1)[freed] = torch.nan
            self._free[tier] = free

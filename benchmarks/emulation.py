"""An emulated accelerator that serves in this process: its times are paced, the CPU's attention is real.

SmolLM2's dense work takes longer than a millisecond a layer on the core that plays the accelerator, so a
model with SmolLM2's attention but little else stands in for it, and the accelerator's own attention is not
computed, only its time taken. What the CPU attends to is full size: numbers drawn at random, in pages of
their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from engine.attention.base import AttentionPlan
from engine.batch import Batch
from engine.clock import MonotonicClock
from engine.devices.emulated import EmulatedDevice
from engine.hybrid.build import HybridParts, hybrid_executor
from engine.kernels.loader import load_kernels
from engine.kv_storage import KVStorage, page_bytes
from engine.models.config import ModelConfig
from engine.models.decoder import DecoderModel
from engine.models.llama import LlamaModel
from engine.profiler.host_attention import measure_host_attention
from engine.thread_environment import share_the_interpreter
from scheduler.iteration_loop import IterationLoop
from scheduler.limits import Limits
from scheduler.messages import AbortRequest, AddRequest, IterationOutput
from scheduler.planner import Planner
from scheduler.prefix_index import Parent
from scheduler.profile import decode_profile, with_host_attention
from scheduler.profile_costs import ProfileCosts
from scheduler.scheduler import Scheduler
from scheduler.tier import Tier
from scheduler.types import Request, RequestId, SamplingParams

PROFILE = Path(__file__).parent.parent / "configs" / "profiles" / "emulated-small.json"
PAGE_SIZE = 16
STAND_IN = ModelConfig(
    family="llama", name="stand-in", vocab_size=1024, hidden_size=128, intermediate_size=128, num_layers=30,
    num_heads=9, num_kv_heads=3, head_dim=64, context_length=8192, rms_norm_eps=1e-5, rope_theta=1e4,
    tie_word_embeddings=True, attention_scale=0.125,
)  # fmt: skip


class _Drawn:
    """Weights at random; see ``engine.models.decoder.TensorSource``."""

    def __init__(self, config: ModelConfig) -> None:
        self._shapes = LlamaModel.expected_tensors(config)

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        return torch.randn(self._shapes[name]).to(dtype) * 0.05


class _Hollow:
    """Attention that is only paced; see ``engine.attention.base``."""

    def plan(self, batch: Batch) -> AttentionPlan:
        return self

    def append(self, layer: int, kv: Tensor) -> None:
        pass

    def attend(self, layer: int, q: Tensor) -> Tensor:
        return q.new_zeros(len(q), q.shape[1] * q.shape[2])


@dataclass(slots=True)
class Seen:
    """What a run produced while it was watched."""

    tokens: int = 0
    host_tokens: int = 0
    seconds: float = 0.0
    in_iterations: float = 0.0
    idle: float = 0.0
    waited: float = 0.0
    host_idle: float = 0.0
    errors: list[float] = field(default_factory=list)
    """Of predicted iteration times, relative."""
    plans: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


class Emulation:
    """One executor; every run serves with a scheduler of its own."""

    def __init__(self, device_pages: int, host_pages: int, slower: int = 1) -> None:
        """``slower``: how often the CPU's attention is computed, as on a CPU so much slower."""
        share_the_interpreter()
        torch.set_num_threads(1)
        torch.manual_seed(0)
        counts = {Tier.DEVICE: device_pages, Tier.HOST: host_pages}
        self.tiers = {
            tier: KVStorage(STAND_IN, count, PAGE_SIZE, torch.bfloat16) for tier, count in counts.items()
        }
        for storage in self.tiers.values():
            storage.blocks.normal_()
        model: DecoderModel = LlamaModel(STAND_IN, _Drawn(STAND_IN), torch.float32)
        kernels = load_kernels("auto", 1)
        table = measure_host_attention(STAND_IN, torch.float32, torch.bfloat16, PAGE_SIZE, kernels, 3.0)
        profile = with_host_attention(decode_profile(PROFILE.read_bytes(), PROFILE.name), table)
        self.costs = ProfileCosts(profile)
        self.clock = MonotonicClock()
        self.executor = hybrid_executor(
            HybridParts(
                model=model,
                device=EmulatedDevice(self.costs),
                tiers=self.tiers,
                attention=dict.fromkeys(Tier, _Hollow()),
                host_kernels=kernels,
                costs=self.costs,
                clock=self.clock,
                eos_token_ids=(),
                host_attention_repeats=slower,
            )
        )

    def close(self) -> None:
        """End its threads."""
        self.executor.close()

    def run(
        self, load: Load, planner: Planner, decodes_on_host: bool, warm_up: float, watched: float
    ) -> Seen:
        """Serve ``load`` and watch it for some seconds, after some in which it settles."""
        limits = Limits(
            host_pages=self.tiers[Tier.HOST].num_pages,
            device_pages=self.tiers[Tier.DEVICE].num_pages,
            page_size=PAGE_SIZE,
            page_bytes=page_bytes(STAND_IN, PAGE_SIZE, torch.bfloat16),
            max_running=64,
            max_batch_tokens=512,
            context_length=load.context + max(load.outputs) + 1,
            host_decodes=decodes_on_host,
        )
        scheduler = Scheduler(limits, planner, self.costs)
        _remember(scheduler, load)
        clients = _Clients(load, self.clock, warm_up, watched)
        loop = IterationLoop(scheduler, self.executor, self.clock, clients, clients.see)
        try:
            while True:
                loop.step()
        except _AllGone:
            return clients.seen


@dataclass(frozen=True, slots=True)
class Load:
    """Clients that ask again as soon as they were answered."""

    clients: int
    context: int
    """Prompt tokens; a multiple of the page size and one."""
    outputs: tuple[int, ...]
    """Tokens of a client's first answer, its second, and so on from the beginning."""

    def prompt(self, client: int) -> tuple[int, ...]:
        """Different for each client, and from the first page on."""
        return tuple((client * 31 + position * 7) % 1000 for position in range(self.context))


class _AllGone(Exception):
    """The run is over and everything in it has ended."""


class _Clients:
    """See ``scheduler.iteration_loop.Inbox``."""

    def __init__(self, load: Load, clock: MonotonicClock, warm_up: float, watched: float) -> None:
        self.seen = Seen()
        self._load = load
        self._clock = clock
        self._from = clock.now() + warm_up
        self._until = self._from + watched
        self._asked = [0] * load.clients
        self._outbox: list[AddRequest | AbortRequest] = [self._ask(client) for client in range(load.clients)]
        self._ended = False

    def take(self, wait: bool) -> Iterable[AddRequest | AbortRequest]:
        if wait and not self._outbox:
            raise _AllGone
        taken, self._outbox = self._outbox, []
        return taken

    def see(self, output: IterationOutput) -> None:
        now = self._clock.now()
        if self._from <= now < self._until:
            self._count(output)
        if self._ended:
            return
        if now >= self._until:
            self._ended = True
            self._outbox = [AbortRequest(self._id(client)) for client in range(self._load.clients)]
            return
        for each in output.outputs:
            if each.finish_reason is not None:
                self._outbox.append(self._ask(int(each.request_id.partition(".")[0])))

    def _count(self, output: IterationOutput) -> None:
        seen, stats = self.seen, output.stats
        produced = [each for each in output.outputs if each.token_ids]
        seen.tokens += len(produced)
        seen.host_tokens += sum(each.tier == Tier.HOST for each in produced)
        seen.seconds += stats.iteration_seconds
        if stats.timing is None or stats.plan is None:
            return
        seen.in_iterations += stats.timing.total
        seen.idle += stats.timing.accelerator_idle
        seen.waited += stats.timing.waited_for_host
        seen.host_idle += stats.timing.host_idle
        name = f"{stats.plan.mode} x{stats.plan.waves}"
        seen.plans[name] = seen.plans.get(name, 0) + 1
        if stats.plan.seconds:
            seen.errors.append(abs(stats.plan.seconds / stats.timing.total - 1))

    def _ask(self, client: int) -> AddRequest:
        self._asked[client] += 1
        outputs = self._load.outputs
        params = SamplingParams(
            # Clients don't all end at once: each begins elsewhere in the row of lengths.
            max_tokens=outputs[(self._asked[client] + client) % len(outputs)],
            temperature=0.0,
            seed=0,
            ignore_eos=True,
        )
        prompt = self._load.prompt(client)
        return AddRequest(Request(request_id=self._id(client), prompt_token_ids=prompt, sampling=params))

    def _id(self, client: int) -> RequestId:
        return RequestId(f"{client}.{self._asked[client]}")


def _remember(scheduler: Scheduler, load: Load) -> None:
    """Let the prompts' pages be found in host memory, as if they had been computed before."""
    pages = scheduler._residents.tiers[Tier.HOST]
    for client in range(load.clients):
        prompt = load.prompt(client)
        count = (load.context - 1) // PAGE_SIZE
        if pages.pool.available - pages.pool.cached < count:
            return
        taken, _evicted = pages.pool.allocate(count)
        tail: Parent = ""
        for number, page in enumerate(taken):
            tail = pages.index.insert(tail, prompt[number * PAGE_SIZE : (number + 1) * PAGE_SIZE], page)
        pages.pool.release(taken, [True] * count)

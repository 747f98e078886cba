"""A scripted engine and a byte tokenizer: the HTTP surface with everything behind it known in advance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

from tokenizers import AddedToken

from configs.settings import Settings
from scheduler.messages import EngineFacts, SchedulerStats
from scheduler.tier import Tier
from scheduler.types import ChoiceOutput, FinishReason, Request, RequestId, TokenLogprobs
from server.engine_client.protocol import EngineDied, EngineState, EngineUnavailable, QueueFull
from server.engine_client.pulse import EngineHealth
from server.http.keys import KeyRing
from server.metrics.registry import Metrics
from server.services import Services
from server.text.chat_template import ChatTemplate
from server.text.sampling_defaults import SamplingDefaults
from server.text.tokenizer import Tokenizer, Vocabulary

MODEL = "org/tiny"
CONTEXT = 256
EOS, IM_START = 256, 257
VOCAB = 258
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{% if fail is defined %}{{ raise_exception(fail) }}{% endif %}"
)
SPECIAL = {"<|im_end|>": EOS, "<|im_start|>": IM_START}


def encode(text: str) -> list[int]:
    """One token for each byte, two special tokens."""
    for spelling, token_id in SPECIAL.items():
        before, found, after = text.partition(spelling)
        if found:
            return [*encode(before), token_id, *encode(after)]
    return list(text.encode())


class ByteBackend:
    """The part of ``tokenizers.Tokenizer`` that the server's Tokenizer uses."""

    mark = ""

    def add_special_tokens(self, tokens: list[AddedToken]) -> None:
        (self.mark,) = (token.content for token in tokens)

    def token_to_id(self, token: str) -> int:
        return VOCAB

    def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> list[SimpleNamespace]:
        return [SimpleNamespace(ids=self.encode(text)) for text in texts]

    def encode(self, text: str) -> list[int]:
        before, mark, after = text.partition(self.mark)
        return [*encode(before), VOCAB, *self.encode(after)] if mark else encode(text)


def byte_tokenizer() -> Tokenizer:
    table = (*(bytes([value]) for value in range(256)), *(name.encode() for name in SPECIAL))
    return Tokenizer(
        ByteBackend(),  # type: ignore[arg-type]
        Vocabulary(table, frozenset(SPECIAL.values())),
        eos_id=EOS,
        chat_templates={"default": CHATML},
    )


FACTS = EngineFacts(
    model_name="tiny",
    family="llama",
    dtype="float32",
    weights="float32",
    weight_bytes=4,
    device_name="cpu",
    vocab_size=VOCAB,
    context_length=CONTEXT,
    eos_token_ids=(EOS,),
    page_size=16,
    host_kv_pages=64,
    device_kv_pages=0,
    page_bytes=1024,
    kv_dtype="float32",
    parameters=1,
    load_seconds=0.1,
)

Script = Callable[[Request, int], list[int]]
"""Request and choice to the tokens that the model would produce; without EOS the choice runs to length."""


def says(text: str) -> Script:
    """Every choice says the same and ends."""
    return lambda request, choice: [*text.encode(), EOS]


def alphabet(request: Request, choice: int) -> list[int]:
    """Never ends by itself; choices differ."""
    return [97 + (choice + position) % 26 for position in range(CONTEXT)]


@dataclass
class FakeEngine:
    """Implements ``EngineClient``. One task for each request plays the script, batch by batch."""

    script: Script = field(default_factory=lambda: says("Hello"))
    tokens_per_batch: int = 1
    pause: float = 0.0
    """Seconds between batches."""
    held: bool = False
    """While true, requests are queued and get nothing."""
    scheduled_at: Callable[[], float] | None = None
    """When requests are given a place; they say so before their first token then."""
    queue_limit: int = 1000
    cached_tokens: int = 0
    die_after: int | None = None
    """Batches of each request after which the engine dies."""
    death: type[Exception] = EngineDied
    fail_after: int | None = None
    """Batches of each request after which its choices end with ``failure``."""
    failure: FinishReason = FinishReason.ERROR
    tier: Callable[[int, int], Tier | None] = lambda choice, position: None
    """Where the token at a position of a choice is computed."""
    state: EngineState = EngineState.READY
    facts: EngineFacts | None = FACTS
    stats: SchedulerStats | None = None
    health: EngineHealth = EngineHealth()  # noqa: RUF009 - frozen
    retry_after_seconds: float = 5.0
    requests: list[Request] = field(default_factory=list)
    """All that were submitted."""
    live: dict[RequestId, set[int]] = field(default_factory=dict)
    """Unfinished choices of each live request."""
    aborted: list[tuple[RequestId, int | None]] = field(default_factory=list)
    flushes: int = 0
    produced: dict[RequestId, int] = field(default_factory=dict)
    """Batches that each request has got."""

    def submit(self, request: Request) -> AsyncIterator[tuple[ChoiceOutput, ...]]:
        if self.state is not EngineState.READY:
            raise EngineUnavailable(self.state, 7.2)
        if len(self.live) >= self.queue_limit:
            raise QueueFull(3.4)
        self.requests.append(request)
        self.live[request.request_id] = set(range(request.n))
        return self._play(request)

    def check_room(self) -> None:
        if len(self.live) >= self.queue_limit:
            raise QueueFull(3.4)

    def flush_cache(self) -> None:
        self.flushes += 1

    def abort(self, request_id: RequestId, index: int | None = None) -> None:
        if request_id not in self.live:
            return
        self.aborted.append((request_id, index))
        self.live[request_id] -= set(range(128)) if index is None else {index}
        if not self.live[request_id]:
            del self.live[request_id]

    async def _play(self, request: Request) -> AsyncIterator[tuple[ChoiceOutput, ...]]:
        scripts = [self.script(request, choice) for choice in range(request.n)]
        position, batches = 0, 0
        if self.scheduled_at is not None:
            yield tuple(
                ChoiceOutput(request_id=request.request_id, index=index, scheduled_at=self.scheduled_at())
                for index in range(request.n)
            )
        while request.request_id in self.live:
            await asyncio.sleep(self.pause)
            while self.held and request.request_id in self.live:
                await asyncio.sleep(0.001)
            if self.die_after == batches:
                raise self.death("killed")
            choices = sorted(self.live.get(request.request_id, ()))
            failing = self.fail_after == batches
            batches += 1
            self.produced[request.request_id] = batches
            batch = tuple(
                self._output(request, index, scripts[index], position, failing) for index in choices
            )
            position += self.tokens_per_batch
            if batch:
                yield batch

    def _output(
        self, request: Request, index: int, script: list[int], position: int, failing: bool
    ) -> ChoiceOutput:
        if failing:
            self._finish(request, index)
            return ChoiceOutput(
                request_id=request.request_id, index=index, finish_reason=self.failure, error="no pages"
            )
        limit = request.sampling.max_tokens
        end = min(position + self.tokens_per_batch, limit)
        tokens = script[position:end]
        reason = None
        if EOS in tokens and not request.sampling.ignore_eos:
            tokens = tokens[: tokens.index(EOS) + 1]
            reason = FinishReason.STOP
        elif end == limit or len(script) <= end:
            reason = FinishReason.LENGTH
        if reason is not None:
            self._finish(request, index)
        return ChoiceOutput(
            request_id=request.request_id,
            index=index,
            token_ids=tuple(tokens),
            logprobs=self._logprobs(request, tokens),
            prompt_logprobs=self._scores(request) if position == 0 and index == 0 else (),
            finish_reason=reason,
            cached_tokens=self.cached_tokens if position == 0 else 0,
            tier=self.tier(index, position) if tokens else None,
        )

    def _finish(self, request: Request, index: int) -> None:
        choices = self.live[request.request_id]
        choices.discard(index)
        if not choices:
            del self.live[request.request_id]

    def _logprobs(self, request: Request, tokens: list[int]) -> tuple[TokenLogprobs, ...]:
        wanted = request.sampling.logprobs
        if wanted is None:
            return ()
        return tuple(logprobs_of(token, wanted) for token in tokens)

    def _scores(self, request: Request) -> tuple[TokenLogprobs, ...]:
        wanted = request.sampling.prompt_logprobs
        if wanted is None:
            return ()
        return tuple(logprobs_of(token, wanted) for token in request.prompt_token_ids[1:])


def logprobs_of(token: int, wanted: int) -> TokenLogprobs:
    """The sampled token is never among the likeliest, so that both are seen."""
    top = tuple(((token + 1 + rank) % 256, -0.5 - rank) for rank in range(wanted))
    return TokenLogprobs(token, -2.0, top)


@dataclass(frozen=True, slots=True)
class InPlace:
    """Renders templates, which are trusted here, without a process of their own."""

    template: ChatTemplate

    async def render(self, messages, *, variables=None, **options) -> str:
        return self.template.render(messages, **options, **(variables or {}))


def make_services(engine: FakeEngine, keys: KeyRing | None = None, **settings: object) -> Services:
    """Services over a fake engine; every draw of a seed gives the next number."""
    tokenizer = byte_tokenizer()
    seeds = iter(range(1000, 10**9))
    return Services(
        settings=Settings(**settings),  # type: ignore[arg-type]
        model_name=MODEL,
        engine=engine,
        tokenizer=tokenizer,
        chat_template=InPlace(ChatTemplate(tokenizer.chat_templates, protect=tokenizer.plain_text.protect)),
        sampling_defaults=SamplingDefaults(),
        metrics=Metrics(MODEL),
        engine_restarts=lambda: 0,
        version="1.2.3",
        keys=keys or KeyRing(),
        draw_seed=lambda: next(seeds),
    )

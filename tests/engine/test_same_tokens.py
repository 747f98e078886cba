"""The same request gives the same tokens, whatever happens around it (SmolLM2, float32).

Each test compares with the request served alone by an engine that had room for it in one piece.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import msgspec
import pytest

from engine.loading import LoadedEngine, load_engine
from engine.weights.source import resolve
from scheduler.messages import Start
from scheduler.scheduler import Limits, Scheduler
from scheduler.types import Request, RequestId, SamplingParams

PAGES = 512
OUTPUT = 24
GREEDY = {"temperature": 0.0}
SEEDED = {"temperature": 0.9, "top_p": 0.95, "top_k": 200, "repetition_penalty": 1.1}


@pytest.fixture(scope="module")
def engine() -> Iterator[LoadedEngine]:
    source = resolve("smollm2-135m-instruct")
    start = Start(
        model_kind=source.kind,
        model_path=str(source.path),
        model_name=source.short_name,
        dtype="float32",
        quantization="auto",
        max_model_len=None,
        page_size=16,
        host_kv_pages=PAGES,
        host_kv_gib=None,
        kv_dtype="auto",
        cpu_kernels="auto",
        max_batch_tokens=512,
        max_running=64,
        prefix_caching=True,
        threads=None,
        device="cpu",
        device_kv_pages=None,
        emulate_profile=None,
        profile=None,
        plan_mode="auto",
        tpot_limit=None,
        host_tpot_limit=None,
        log_level="info",
    )
    loaded = load_engine(start, lambda loading: None)
    yield loaded
    loaded.executor.close()


def make_request(
    number: int, sampling: dict[str, float], length: int | None = None, output: int = OUTPUT
) -> Request:
    rng = random.Random(number)
    prompt = tuple(rng.randrange(100, 40_000) for _ in range(length or rng.randint(1, 90)))
    params = SamplingParams(max_tokens=output, seed=number, ignore_eos=True, **sampling)
    return Request(request_id=RequestId(f"r{number}"), prompt_token_ids=prompt, sampling=params)


def limits(engine: LoadedEngine, **changes: int | bool) -> Limits:
    values = {
        "host_pages": PAGES,
        "page_size": 16,
        "max_running": 64,
        "max_batch_tokens": 512,
        "context_length": 1024,
        "eos_token_ids": engine.limits.eos_token_ids,
        **changes,
    }
    return Limits(**values)


def serve(
    engine: LoadedEngine, scheduler: Scheduler, arrivals: dict[int, list[Request]]
) -> dict[str, list[int]]:
    """Add the requests at their iterations, run to the end, return every request's tokens."""
    tokens: dict[str, list[int]] = {}
    iteration = 0
    while arrivals or scheduler.has_requests:
        for request in arrivals.pop(iteration, []):
            scheduler.add(request)
        iteration += 1
        plan = scheduler.schedule()
        if plan is None:
            continue
        engine.executor.submit(plan)
        for output in scheduler.commit(plan, engine.executor.collect()):
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
    return tokens


@pytest.fixture(scope="module")
def alone(engine: LoadedEngine) -> Callable[[Request], list[int]]:
    """Tokens of a request served by itself, computed once."""
    known: dict[bytes, list[int]] = {}

    def tokens(request: Request) -> list[int]:
        key = msgspec.msgpack.encode(request)
        if key not in known:
            scheduler = Scheduler(limits(engine, prefix_caching=False))
            known[key] = serve(engine, scheduler, {0: [request]})[request.request_id]
        return known[key]

    return tokens


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_among_31_others_that_come_at_random(engine, alone, sampling):
    rng = random.Random(3)
    requests = [make_request(number, sampling) for number in range(32)]
    arrivals: dict[int, list[Request]] = {}
    for request in requests:
        arrivals.setdefault(rng.randrange(20), []).append(request)
    tokens = serve(engine, Scheduler(limits(engine)), arrivals)
    assert len(tokens) == 32
    for request in requests[:8]:
        assert tokens[request.request_id] == alone(request)


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_after_forced_preemptions(engine, alone, sampling):
    requests = [make_request(number, sampling, length=14, output=30) for number in range(4)]
    scheduler = Scheduler(limits(engine, host_pages=8, context_length=64))
    tokens = serve(engine, scheduler, {0: requests})
    assert scheduler.stats(None, 0.0).preemptions_total >= 2
    for request in requests:
        assert tokens[request.request_id] == alone(request)


def test_with_a_prefix_hit(engine, alone):
    first = make_request(50, GREEDY, length=70)
    second = make_request(51, GREEDY, length=40)
    longer = Request(
        request_id=RequestId("longer"),
        prompt_token_ids=first.prompt_token_ids + second.prompt_token_ids,
        sampling=first.sampling,
    )
    scheduler = Scheduler(limits(engine))
    tokens = serve(engine, scheduler, {0: [first], 40: [longer]})
    assert scheduler.stats(None, 0.0).prefix_hits_total == 64
    assert tokens["longer"] == alone(longer)
    again = serve(engine, scheduler, {0: [first]})
    assert scheduler.stats(None, 0.0).prefix_hits_total == 128
    assert again[first.request_id] == tokens[first.request_id] == alone(first)


@pytest.mark.parametrize("chunk", [1, 7, 16, 50])
def test_with_any_prefill_chunk(engine, alone, chunk):
    requests = [make_request(number, GREEDY, length=75) for number in (70, 71)]
    tokens = serve(engine, Scheduler(limits(engine, max_batch_tokens=chunk)), {0: requests})
    for request in requests:
        assert tokens[request.request_id] == alone(request)


def test_the_choices_of_one_request(engine, alone):
    request = make_request(90, SEEDED, length=50)
    several = Request(
        request_id=RequestId("several"),
        prompt_token_ids=request.prompt_token_ids,
        sampling=request.sampling,
        n=3,
    )
    tokens = serve(engine, Scheduler(limits(engine)), {0: [several]})["several"]
    assert len(tokens) == 3 * OUTPUT
    counts = [tokens.count(token) for token in set(alone(request))]
    assert all(counts), "the first choice is the request alone"

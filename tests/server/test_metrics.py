"""The figures on /metrics against what was asked for and answered."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json

import httpx
import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from scheduler.messages import SchedulerStats
from scheduler.plan import ACCELERATOR_ONLY, Overlap, PlanMode, Timing
from scheduler.tier import Tier
from scheduler.types import ChoiceOutput, FinishReason, Request, RequestId, SamplingParams
from scheduler.work import Stage
from server.app import create_app
from server.engine_client.output_stream import QueuedOutputStream
from server.engine_client.protocol import EngineState
from server.metrics.registry import ENDPOINTS, Metrics
from tests.server.fakes import EOS, MODEL, FakeEngine, alphabet, make_services

pytestmark = pytest.mark.anyio
CHAT, COMPLETIONS = ENDPOINTS
BODY = {"model": MODEL, "prompt": "hi", "max_tokens": 3}
STATS = SchedulerStats(
    sequences_running=3,
    sequences_waiting=2,
    sequences_prefilling=1,
    sequences_device=0,
    sequences_host=3,
    host_rows=0,
    host_pages_used=16,
    host_pages_cached=8,
    device_pages_used=0,
    device_pages_cached=0,
    preemptions_total=4,
    migrations_in_total=0,
    migrations_out_total=0,
    migration_bytes_in_total=0,
    migration_bytes_out_total=0,
    prefix_queries_total=100,
    prefix_hits_total=25,
    prefill_tokens=30,
    decode_tokens=2,
    iteration_seconds=0.5,
    plan=ACCELERATOR_ONLY,
    timing=None,
)
"""Of a machine without an accelerator."""
TIMING = Timing(
    total=0.4,
    stages={stage: 0.01 * (1 + number) for number, stage in enumerate(Stage)},
    predicted={},
    accelerator_idle=0.05,
    waited_for_host=0.002,
    host_idle=0.1,
    passes=3,
    late=2,
)
OVERLAP = Overlap(
    mode=PlanMode.CATCH_UP, reason="because", seconds=0.5, rate=90.0, rejected=(("async-overlap", 80.0),)
)
OVERLAPPED = msgspec.structs.replace(STATS, plan=OVERLAP, timing=TIMING, host_rows=4)
"""Of one with."""
ALONE = msgspec.structs.replace(
    OVERLAPPED,
    plan=ACCELERATOR_ONLY,
    host_rows=0,
    timing=msgspec.structs.replace(TIMING, waited_for_host=0.0, host_idle=0.0, passes=0, late=0),
)
"""Of one without host rows."""
IDLE = msgspec.structs.replace(STATS, plan=None, prefill_tokens=0, decode_tokens=0)
"""Nothing was computed: there was an abort, say."""
MODES = ("accelerator_only", "async_overlap", "catch_up", "asymmetric_pipeline")


def iteration_figures(*iterations: SchedulerStats) -> dict:
    """As ``scrape``, after some iterations."""
    metrics = Metrics(MODEL)
    for stats in iterations:
        metrics.observe_iteration(stats)
    samples = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            labels = [value for name, value in sample.labels.items() if name != "model_name"]
            samples[sample.name.removeprefix("tandem_"), *labels] = sample.value
    return samples


async def scrape(http, accept: str = "") -> dict:
    """Samples by (name, labels without the model's), checked by a parser of their format."""
    answer = await http.get("/metrics", headers={"accept": accept})
    parse = openmetrics if "openmetrics" in answer.headers["content-type"] else prometheus
    samples = {}
    for family in parse(answer.text):
        for sample in family.samples:
            labels = dict(sample.labels)
            if not sample.name.startswith("tandem_http_"):
                assert labels.pop("model_name") == MODEL
            samples[sample.name.removeprefix("tandem_"), *labels.values()] = sample.value
    return samples


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
async def test_everything_is_there_from_the_start(http, accept):
    figures = await scrape(http, accept)
    for endpoint, reason in itertools.product(ENDPOINTS, ("stop", "length", "abort", "error")):
        assert figures["requests_finished_total", endpoint, reason] == 0
    for reason in ("invalid", "too_large", "queue_full", "loading", "draining"):
        assert figures["requests_rejected_total", reason] == 0
    for name in ("requests_running", "requests_waiting", "requests_prefilling", "engine_restarts_total"):
        assert figures[name,] == 0
    for name in ("prompt_tokens_total", "prompt_tokens_cached_total", "generation_tokens_total"):
        assert figures[name,] == 0
    assert figures["e2e_request_latency_seconds_count",] == 0
    for tier in ("cpu", "device", "host"):
        assert figures["time_to_first_token_seconds_count", "true", tier] == 0
        assert figures["inter_token_latency_seconds_count", tier] == 0
        assert figures["time_per_output_token_seconds_count", tier] == 0
    assert figures["time_per_output_token_seconds_count", "mixed"] == 0
    for kind, mode in itertools.product(("prefill", "decode", "mixed"), ("cpu_only", *MODES)):
        assert figures["iterations_total", kind, mode] == 0
        assert figures["iteration_seconds_count", kind, mode] == 0
        assert figures["batch_tokens_count", kind] == 0
        assert figures["plan_mode", mode] == 0
    for mode in MODES:
        assert figures["iteration_predicted_seconds_count", mode] == 0
        assert figures["iteration_time_ratio_count", mode] == 0
    assert [figures["stage_seconds_total", stage] for stage in Stage] == [0] * len(Stage)
    for name in ("accelerator_idle_seconds", "accelerator_waited_for_host_seconds", "host_idle_seconds"):
        assert figures[f"{name}_total",] == 0
    assert figures["late_results_total",] == figures["catch_up_passes_total",] == figures["host_rows",] == 0
    for direction in ("to_device", "to_host"):
        assert figures["kv_migrations_total", direction] == 0
        assert figures["kv_migration_bytes_total", direction] == 0
    assert figures["kv_pages_total", "host"] == 64
    assert figures["kv_pages_total", "device"] == figures["kv_usage_ratio", "device"] == 0
    assert figures["sequences_by_tier", "device"] == figures["sequences_by_tier", "host"] == 0
    assert figures["preemptions_total", "recompute"] == 0
    assert figures["http_requests_in_flight",] == 1


async def test_requests_and_tokens_are_counted_once(http, engine: FakeEngine):
    engine.script, engine.cached_tokens = alphabet, 1
    usages = []
    for fields in ({}, {"n": 2}, {"prompt": ["a", "bcd"]}, {"stop": "b"}, {"max_tokens": 0}):
        answer = await http.post(COMPLETIONS, json={**BODY, **fields})
        usages.append(answer.json()["usage"])
    await http.post(COMPLETIONS, json={**BODY, "stream": True})
    engine.script = lambda request, choice: [*b"ok", EOS]
    await http.post(CHAT, json={"model": MODEL, "messages": [{"role": "user", "content": "x"}]})
    figures = await scrape(http)
    assert figures["requests_received_total", COMPLETIONS] == 6
    assert figures["requests_received_total", CHAT] == 1
    assert figures["requests_finished_total", COMPLETIONS, "length"] == 5
    assert figures["requests_finished_total", COMPLETIONS, "stop"] == 1
    assert figures["requests_finished_total", CHAT, "stop"] == 1
    assert figures["choices_finished_total", "length"] == 1 + 2 + 2 + 1 + 1
    assert figures["choices_finished_total", "stop"] == 2
    generated = sum(usage["completion_tokens"] for usage in usages) + 3 + 3
    assert figures["generation_tokens_total",] == figures["request_generation_tokens_sum",] == generated
    assert figures["prompt_tokens_total",] == figures["request_prompt_tokens_sum",]
    assert figures["prompt_tokens_cached_total",] == 7
    assert figures["time_to_first_token_seconds_count", "false", "cpu"] == 5
    assert figures["time_to_first_token_seconds_count", "true", "cpu"] == 1
    assert figures["e2e_request_latency_seconds_count",] == 7
    assert figures["inter_token_latency_seconds_count", "cpu"] == generated - 8
    assert figures["time_per_output_token_seconds_count", "cpu"] == 6
    assert figures["requests_running",] == figures["requests_waiting",] == 0


async def test_what_is_rejected_is_not_finished(http, engine):
    await http.post(CHAT, json={"model": MODEL, "messages": []})
    await http.post(CHAT, content=b"x" * 9_000_000, headers={"content-type": "application/json"})
    engine.queue_limit = 0
    await http.post(COMPLETIONS, json=BODY)
    engine.state = EngineState.DRAINING
    await http.post(COMPLETIONS, json=BODY)
    engine.state = EngineState.RESTARTING
    await http.post(COMPLETIONS, json=BODY)
    figures = await scrape(http)
    for reason in ("invalid", "too_large", "queue_full", "loading", "draining"):
        assert figures["requests_rejected_total", reason] == 1
    received = sum(figures["requests_received_total", endpoint] for endpoint in ENDPOINTS)
    assert received == 5
    assert figures["e2e_request_latency_seconds_count",] == 0


async def test_live_requests(http, engine):
    """Counted by the server, so they are right also while the engine idles."""
    engine.held, engine.stats = True, STATS
    asked = [asyncio.create_task(http.post(COMPLETIONS, json=BODY)) for _ in range(3)]
    while len(engine.live) < 3:
        await asyncio.sleep(0.001)
    figures = await scrape(http)
    assert figures["requests_prefilling",] == 1
    assert figures["requests_waiting",] == 2
    assert figures["requests_running",] == 0
    engine.script, engine.pause, engine.held = alphabet, 0.05, False
    while not engine.produced:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    assert (await scrape(http))["requests_running",] >= 1
    await asyncio.gather(*asked)
    figures = await scrape(http)
    assert [figures[f"requests_{state}",] for state in ("running", "waiting", "prefilling")] == [0, 0, 0]


async def test_the_engine_in_figures(http, engine):
    engine.stats = STATS
    figures = await scrape(http)
    assert figures["kv_pages_used", "host"] == 16
    assert figures["kv_pages_cached", "host"] == 8
    assert figures["kv_usage_ratio", "host"] == 0.25
    assert figures["preemptions_total", "recompute"] == 4
    assert figures["prefix_cache_queries_total",] == 100
    assert figures["prefix_cache_hits_total",] == 25
    engine.facts = engine.stats = None
    assert (await scrape(http))["kv_usage_ratio", "host"] == 0


async def test_the_tiers_in_figures(http, engine):
    engine.facts = msgspec.structs.replace(engine.facts, device_kv_pages=10)
    engine.stats = msgspec.structs.replace(
        STATS,
        sequences_device=1,
        sequences_host=2,
        host_rows=2,
        device_pages_used=5,
        device_pages_cached=3,
        migrations_in_total=6,
        migrations_out_total=7,
        migration_bytes_in_total=6000,
        migration_bytes_out_total=7000,
    )
    figures = await scrape(http)
    for name, device, host in (
        ("sequences_by_tier", 1, 2),
        ("kv_pages_total", 10, 64),
        ("kv_pages_used", 5, 16),
        ("kv_pages_cached", 3, 8),
        ("kv_usage_ratio", 0.5, 0.25),
    ):
        assert (figures[name, "device"], figures[name, "host"]) == (device, host), name
    assert figures["host_rows",] == 2
    for name, to_device, to_host in (("kv_migrations", 6, 7), ("kv_migration_bytes", 6000, 7000)):
        assert figures[f"{name}_total", "to_device"] == to_device
        assert figures[f"{name}_total", "to_host"] == to_host


async def test_latency_by_tier(engine):
    """Of three requests, the last one moves to the host after its first token."""
    ticks = itertools.count(step=0.25)
    services = dataclasses.replace(make_services(engine, queue_timeout=0), clock=lambda: next(ticks))
    transport = httpx.ASGITransport(create_app(services))
    engine.script = alphabet
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        engine.tier = lambda choice, position: Tier.DEVICE
        await http.post(COMPLETIONS, json=BODY)
        engine.tier = lambda choice, position: Tier.HOST
        await http.post(COMPLETIONS, json={**BODY, "max_tokens": 2})
        engine.tier = lambda choice, position: Tier.HOST if position else Tier.DEVICE
        await http.post(COMPLETIONS, json=BODY)
        figures = await scrape(http)
    for tier, first, gaps, requests in (("device", 2, 2, 1), ("host", 1, 1 + 2, 1), ("cpu", 0, 0, 0)):
        assert figures["time_to_first_token_seconds_count", "false", tier] == first
        assert figures["time_to_first_token_seconds_sum", "false", tier] == 0.25 * first
        assert figures["inter_token_latency_seconds_count", tier] == gaps
        assert figures["inter_token_latency_seconds_sum", tier] == 0.25 * gaps
        assert figures["time_per_output_token_seconds_count", tier] == requests
    assert figures["time_per_output_token_seconds_count", "mixed"] == 1


async def test_tokens_that_came_together_have_the_tier_of_the_last():
    request = Request(
        request_id=RequestId("a"), prompt_token_ids=(1,), sampling=SamplingParams(max_tokens=3, seed=0)
    )
    stream = QueuedOutputStream(request)
    for token, tier in ((5, Tier.HOST), (6, Tier.DEVICE)):
        stream.feed(ChoiceOutput(request_id=request.request_id, index=0, token_ids=(token,), tier=tier))
    stream.finish(FinishReason.ABORT)
    (output,) = await anext(stream)
    assert (output.token_ids, output.tier) == ((5, 6), Tier.DEVICE)


def test_iterations():
    figures = iteration_figures(
        *(
            msgspec.structs.replace(STATS, prefill_tokens=prefill, decode_tokens=decode)
            for prefill, decode in ((30, 2), (30, 0), (0, 2), (0, 3), (0, 0))
        ),
        IDLE,
    )
    for kind, count in (("mixed", 1), ("prefill", 1), ("decode", 2)):
        assert figures["iterations_total", "cpu_only", kind] == count
        assert figures["iteration_seconds_sum", "cpu_only", kind] == 0.5 * count
    assert figures["batch_tokens_sum", "decode"] == 5
    assert figures["plan_mode", "cpu_only"] == 1
    assert sum(figures["iteration_predicted_seconds_count", mode] for mode in MODES) == 0


def test_iterations_beside_an_accelerator():
    """Every message counts, also one whose host rows got on without a token."""
    without_token = msgspec.structs.replace(OVERLAPPED, prefill_tokens=0, decode_tokens=0)
    figures = iteration_figures(
        OVERLAPPED, without_token, msgspec.structs.replace(without_token, host_rows=0), ALONE, IDLE
    )
    assert figures["iterations_total", "catch_up", "mixed"] == 1
    assert figures["iterations_total", "catch_up", "decode"] == 1
    assert figures["iterations_total", "accelerator_only", "mixed"] == 1
    assert sum(value for (name, *_), value in figures.items() if name == "iterations_total") == 3
    assert figures["batch_tokens_count", "decode"] == 0
    assert figures["batch_tokens_count", "mixed"] == 2
    assert figures["iteration_predicted_seconds_count", "catch_up"] == 2
    assert figures["iteration_predicted_seconds_sum", "catch_up"] == 1.0
    assert figures["iteration_time_ratio_sum", "catch_up"] == pytest.approx(2 * 0.4 / 0.5)
    assert figures["iteration_time_ratio_count", "accelerator_only"] == 0


def test_where_the_time_of_iterations_goes():
    figures = iteration_figures(OVERLAPPED, OVERLAPPED, ALONE, STATS, IDLE)
    for number, stage in enumerate(Stage):
        assert figures["stage_seconds_total", stage] == pytest.approx(3 * 0.01 * (1 + number)), stage
    assert figures["executor_seconds_total", "true"] == pytest.approx(0.8)
    assert figures["executor_seconds_total", "false"] == pytest.approx(0.4)
    assert figures["accelerator_idle_seconds_total",] == pytest.approx(0.15)
    assert figures["accelerator_waited_for_host_seconds_total",] == pytest.approx(0.004)
    assert figures["host_idle_seconds_total",] == pytest.approx(0.2)
    assert figures["catch_up_passes_total",] == 6
    assert figures["late_results_total",] == 4


def test_the_plan_mode_is_the_latest_one_and_its_reason_is_logged(caplog):
    caplog.set_level("DEBUG", logger="server.metrics")
    riding = msgspec.structs.replace(OVERLAP, mode=PlanMode.ASYNC_OVERLAP, reason="slow CPU", rejected=())
    figures = iteration_figures(
        OVERLAPPED, OVERLAPPED, msgspec.structs.replace(OVERLAPPED, plan=riding), IDLE
    )
    assert [mode for mode in ("cpu_only", *MODES) if figures["plan_mode", mode]] == ["async_overlap"]
    assert [record.getMessage() for record in caplog.records] == [
        "plan mode catch_up: because; rejected: async-overlap 80 tokens/s",
        "plan mode async_overlap: slow CPU; rejected: none",
    ]


async def test_http_figures_hold_no_client_input(http):
    await http.get("/secret-path")
    await http.request("BREW", "/health")
    await http.get("/v1/models/secret-model")
    figures = await scrape(http)
    assert figures["http_requests_total", "other", "GET", "404"] == 1
    assert figures["http_requests_total", "/health", "other", "405"] == 1
    assert figures["http_requests_total", "/v1/models/{model_id:path}", "GET", "404"] == 1
    assert "secret" not in (await http.get("/metrics")).text


async def test_engine_restarts_and_times_come_from_the_services(engine):
    ticks = itertools.count(step=0.25)
    services = dataclasses.replace(
        make_services(engine, queue_timeout=0),
        engine_restarts=lambda: 3,
        clock=lambda: next(ticks),
        now=lambda: 1.7e9,
    )
    transport = httpx.ASGITransport(create_app(services))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.post(COMPLETIONS, json={**BODY, "max_tokens": 3})
        figures = await scrape(http)
    assert answer.json()["created"] == 1_700_000_000
    # The clock ticks when the request comes and for each token.
    assert figures["time_to_first_token_seconds_sum", "false", "cpu"] == 0.25
    assert figures["inter_token_latency_seconds_sum", "cpu"] == 0.5
    assert figures["time_per_output_token_seconds_sum", "cpu"] == 0.25
    assert figures["e2e_request_latency_seconds_sum",] == 1.0
    assert figures["engine_restarts_total",] == 3


async def test_one_log_line_a_request(http, caplog):
    caplog.set_level("INFO", logger="server.access")
    await http.post(COMPLETIONS, json=BODY, headers={"x-request-id": "my-id"})
    await http.get("/health")
    await http.get("/a%0ab")
    first, second = (record.getMessage() for record in caplog.records if record.name == "server.access")
    assert first.startswith("POST /v1/completions 200 ")
    assert " id=my-id model=" in first and " prompt=2 cached=0 output=3 " in first
    assert " ttft_ms=" in first and first.endswith("reason=length")
    assert "\n" not in second and " 404 " in second
    assert json.dumps(BODY["prompt"]) not in first


@pytest.mark.parametrize("version", ["x", "1.x", "", "1" * 5000])
async def test_an_accept_header_with_a_strange_version(http, version):
    accept = f"application/openmetrics-text; version={version}"
    answer = await http.get("/metrics", headers={"Accept": accept})
    assert answer.status_code == 200 and "tandem_requests_running" in answer.text

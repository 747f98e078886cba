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
from server.app import create_app
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
    host_pages_used=16,
    host_pages_cached=8,
    preemptions_total=4,
    prefix_queries_total=100,
    prefix_hits_total=25,
    prefill_tokens=30,
    decode_tokens=2,
    iteration_seconds=0.5,
)


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
    for name in ("inter_token_latency", "time_per_output_token", "e2e_request_latency"):
        assert figures[f"{name}_seconds_count",] == 0
    assert figures["time_to_first_token_seconds_count", "true"] == 0
    for kind in ("prefill", "decode", "mixed"):
        assert figures["iterations_total", kind, "cpu_only"] == 0
        assert figures["iteration_seconds_count", kind, "cpu_only"] == 0
        assert figures["batch_tokens_count", kind] == 0
    assert figures["kv_pages_total", "host"] == 64
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
    assert figures["time_to_first_token_seconds_count", "false"] == 5
    assert figures["time_to_first_token_seconds_count", "true"] == 1
    assert figures["e2e_request_latency_seconds_count",] == 7
    assert figures["inter_token_latency_seconds_count",] == generated - 8
    assert figures["time_per_output_token_seconds_count",] == 6
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
    assert figures["prefix_cache_queries_total", "host"] == 100
    assert figures["prefix_cache_hits_total", "host"] == 25
    engine.facts = engine.stats = None
    assert (await scrape(http))["kv_usage_ratio", "host"] == 0


def test_iterations():
    metrics = Metrics(MODEL)
    for prefill, decode in ((30, 2), (30, 0), (0, 2), (0, 3), (0, 0)):
        metrics.observe_iteration(
            msgspec.structs.replace(STATS, prefill_tokens=prefill, decode_tokens=decode)
        )
    sample = metrics.registry.get_sample_value
    labels = {"model_name": MODEL, "plan_mode": "cpu_only"}
    for kind, count in (("mixed", 1), ("prefill", 1), ("decode", 2)):
        assert sample("tandem_iterations_total", {**labels, "kind": kind}) == count
        assert sample("tandem_iteration_seconds_sum", {**labels, "kind": kind}) == 0.5 * count
    assert sample("tandem_batch_tokens_sum", {"model_name": MODEL, "kind": "decode"}) == 5


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
        make_services(engine), engine_restarts=lambda: 3, clock=lambda: next(ticks), now=lambda: 1.7e9
    )
    transport = httpx.ASGITransport(create_app(services))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        answer = await http.post(COMPLETIONS, json={**BODY, "max_tokens": 3})
        figures = await scrape(http)
    assert answer.json()["created"] == 1_700_000_000
    # The clock ticks when the request comes and for each token.
    assert figures["time_to_first_token_seconds_sum", "false"] == 0.25
    assert figures["inter_token_latency_seconds_sum",] == 0.5
    assert figures["time_per_output_token_seconds_sum",] == 0.25
    assert figures["e2e_request_latency_seconds_sum",] == 1.0
    assert figures["engine_restarts_total",] == 3


async def test_one_log_line_a_request(http, caplog):
    caplog.set_level("INFO", logger="server.access")
    await http.post(COMPLETIONS, json=BODY, headers={"x-request-id": "my-id"})
    await http.get("/health")
    await http.get("/a%0ab")
    first, second = (record.getMessage() for record in caplog.records if record.name == "server.access")
    assert first.startswith("POST /v1/completions 200 ")
    assert "id=my-id prompt=2 cached=0 output=3 ttft=" in first and first.endswith("reason=length")
    assert "\n" not in second and " 404 " in second
    assert json.dumps(BODY["prompt"]) not in first


@pytest.mark.parametrize("version", ["x", "1.x", "", "1" * 5000])
async def test_an_accept_header_with_a_strange_version(http, version):
    accept = f"application/openmetrics-text; version={version}"
    answer = await http.get("/metrics", headers={"Accept": accept})
    assert answer.status_code == 200 and "tandem_requests_running" in answer.text

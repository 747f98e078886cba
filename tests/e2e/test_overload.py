"""Far more clients than places: everyone is answered or refused, once, and the server stays honest."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import httpx

from tests.e2e.test_lifecycle import Daemon, completion, daemon, model

__all__ = ["daemon", "model"]

CLIENTS, QUEUE, RUNNING = 500, 64, 8


async def ask(http: httpx.AsyncClient, number: int) -> tuple[int, str, str]:
    """Status, error code, and the text, which tells whose answer it is."""
    body = {**completion([100, 1000 + number], max_tokens=300), "stream": number % 2 == 0}
    answer = await http.post("/v1/completions", json=body)
    if answer.status_code == 200:
        return 200, "", answer.text
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    return answer.status_code, answer.json()["error"]["code"], ""


async def flood(url: str) -> tuple[list[tuple[int, str, str]], list[int]]:
    limits = httpx.Limits(max_connections=CLIENTS + 1)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as http:
        asked = asyncio.gather(*(ask(http, number) for number in range(CLIENTS)))
        probes = []
        while not asked.done():
            probes.append((await http.get("/health")).status_code)
            await asyncio.sleep(0.05)
        return await asked, probes


def test_a_flood_of_clients(daemon: Callable[..., Daemon]) -> None:
    server = daemon(max_queue=QUEUE, max_running=RUNNING, queue_timeout=30)
    url = server.url()
    answers, probes = asyncio.run(flood(url))
    outcomes = Counter((status, code) for status, code, _ in answers)
    assert set(outcomes) == {(200, ""), (503, "server_overloaded")}
    assert outcomes[200, ""] >= QUEUE + RUNNING
    assert set(probes) == {200}
    load = httpx.get(f"{url}/load").json()
    assert (load["server_load"], load["sequences_running"]) == (0, 0)
    figures = httpx.get(f"{url}/metrics").text.splitlines()
    counted = Counter()
    for line in figures:
        if line.startswith(("tandem_requests_finished_total", "tandem_requests_rejected_total")):
            counted[line.partition("{")[0]] += float(line.rpartition(" ")[2])
    assert counted["tandem_requests_finished_total"] == outcomes[200, ""]
    assert counted["tandem_requests_rejected_total"] == outcomes[503, "server_overloaded"]

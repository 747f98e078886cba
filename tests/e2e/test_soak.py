"""Many streams, many of them cancelled: nothing is left behind and the event loop stays free."""

from __future__ import annotations

import asyncio
import os
import random
import re
import time

import httpx
import psutil
import pytest

from tests.e2e.conftest import MODEL
from tests.e2e.daemon import Daemon

STREAMS = 64
LONG_PROMPT = 400_000


async def one_stream(client: httpx.AsyncClient, rng: random.Random) -> str:
    """Ask, read, and perhaps leave early."""
    leave_after = rng.choice([None, None, 0, 1, 5, 20])
    words = " ".join(rng.choice(["red", "green", "blue"]) for _ in range(rng.randint(1, 200)))
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": words}],
        "max_tokens": rng.randint(1, 60),
        "ignore_eos": True,
        "n": rng.choice([1, 1, 1, 2]),
        "stream": True,
    }
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code == 503:
            return "refused"
        assert response.status_code == 200, await response.aread()
        frames = 0
        async for line in response.aiter_lines():
            frames += line.startswith("data: {")
            if leave_after is not None and frames > leave_after:
                return "left"
            assert not line.startswith('data: {"error"'), line
            if line == "data: [DONE]":
                return "done"
    return "broken"


async def storm(url: str, seconds: float, seed: int) -> dict[str, int]:
    """Keep ``STREAMS`` streams going for a while, and send one very long prompt every second."""
    endings: dict[str, int] = {}
    until = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=STREAMS + 4)

    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:

        async def worker(number: int) -> None:
            rng = random.Random(seed + number)
            while time.monotonic() < until:
                ending = await one_stream(client, rng)
                endings[ending] = endings.get(ending, 0) + 1

        async def long_prompts() -> None:
            text = "lorem ipsum dolor sit amet " * (LONG_PROMPT // 27)
            body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
            while time.monotonic() < until:
                response = await client.post("/v1/chat/completions", json=body)
                assert response.status_code == 400, response.text
                assert response.json()["error"]["code"] == "context_length_exceeded"
                await asyncio.sleep(1)

        await asyncio.gather(long_prompts(), *(worker(number) for number in range(STREAMS)))
    return endings


def footprint(daemon: Daemon) -> tuple[int, int]:
    """Open file descriptors and resident bytes of both processes."""
    processes = [psutil.Process(daemon.process.pid), daemon.engine]
    return sum(one.num_fds() for one in processes), sum(one.memory_info().rss for one in processes)


def soak(seconds: float, growth_bytes: int) -> tuple[float, float]:
    # So few pages that the first storm touches them all (the system hands memory out on first use),
    # and that sequences are preempted.
    options = ("--host-kv-pages", "300", "--max-running", "48", "--max-model-len", "2048")
    with Daemon(*options, launcher=("-m", "tests.e2e.watched_server")) as daemon:
        asyncio.run(storm(daemon.url, min(seconds, 20), seed=1))
        daemon.wait_until_idle()
        time.sleep(1)
        before = footprint(daemon)
        endings = asyncio.run(storm(daemon.url, seconds, seed=1000))
        daemon.wait_until_idle()
        time.sleep(1)
        after = footprint(daemon)
        received = daemon.metric("tandem_requests_received_total")
        rejected = daemon.metric("tandem_requests_rejected_total")
        finished = daemon.metric("tandem_requests_finished_total")
    print(f"endings {endings}; fds, bytes before {before} after {after}")
    assert endings.get("broken", 0) == 0 and endings["done"] > 0 and endings["left"] > 0
    assert received == rejected + finished
    assert after[0] <= before[0] + 2, "file descriptors leaked"
    assert after[1] <= before[1] + growth_bytes, "memory grew"
    found = re.search(r"event loop: waited ([\d.]+) s, worked ([\d.]+) s", daemon.output())
    assert found is not None, daemon.output()
    print(found[0], f"on {os.cpu_count()} cores")
    return float(found[1]), float(found[2])


@pytest.mark.timeout(180)
def test_a_short_storm_leaves_nothing_behind():
    _waited, worked = soak(seconds=8, growth_bytes=60 * 2**20)
    assert worked < 0.05, "the event loop worked on one thing for too long"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_minute_of_storm_leaves_nothing_behind():
    waited, worked = soak(seconds=60, growth_bytes=50 * 2**20)
    assert worked < 0.05
    assert waited < 0.05, "the event loop was blocked"

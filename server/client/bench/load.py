"""The two ways of putting load on a server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from server.client.bench.records import RequestRecord

Send = Callable[[], Awaitable[RequestRecord]]
"""Sends the next request; never raises."""


async def closed_loop(send: Send, streams: int, requests: int) -> list[RequestRecord]:
    """``streams`` clients, each sending its next request when the last one is answered."""
    left = iter(range(requests))

    async def client() -> list[RequestRecord]:
        return [await send() for _ in left]

    records = await asyncio.gather(*(client() for _ in range(streams)))
    return [record for of_client in records for record in of_client]


async def open_loop(send: Send, rate: float, requests: int, rng: random.Random) -> list[RequestRecord]:
    """Requests at Poisson times, however many are still unanswered.

    Args:
        send: sends the next request.
        rate: mean requests per second.
        requests: how many to send.
        rng: for the times between them.
    """
    async with asyncio.TaskGroup() as group:
        tasks = []
        for _ in range(requests):
            await asyncio.sleep(rng.expovariate(rate))
            tasks.append(group.create_task(_recorded(send)))
    return [task.result() for task in tasks]


async def _recorded(send: Send) -> RequestRecord:
    return await send()

"""Entry point of ``tandem bench``."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Sequence

import httpx

from server.client.api_client import RemoteError, auth_headers
from server.client.bench.options import Options, parse
from server.client.bench.report import Report, to_json, to_text
from server.client.bench.session import Session


def run(argv: Sequence[str]) -> int:
    """Run the benchmark and print its report.

    Returns:
        0 if every request was answered, 1 if one failed or the server can't be used, 2 for wrong
        arguments, 130 if interrupted.
    """
    try:
        options = parse(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        report = asyncio.run(_measure(options))
    except RemoteError as error:
        print(f"tandem bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(to_text(report), flush=True)
    if options.json:
        try:
            options.json.write_bytes(to_json(report))
        except OSError as error:
            print(f"tandem bench: {options.json} can't be written: {error.strerror}", file=sys.stderr)
            return 1
    return 1 if any(row.errors for row in report.rows) else 0


async def _measure(options: Options) -> Report:
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    async with httpx.AsyncClient(
        base_url=options.url,
        headers=auth_headers(options.api_key),
        timeout=httpx.Timeout(options.timeout, connect=10.0),
        # A connection for each request, as from clients that don't know each other: some servers close theirs
        # after an answer, and a request that is on its way then is lost.
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
    ) as http:
        session = Session(http, options, random.Random(seed), time.perf_counter)
        return await session.measure(seed, lambda line: print(line, file=sys.stderr))

"""The options of ``tandem bench``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from server.client.arguments import api_key, server_root, temperature
from server.client.bench.client import Endpoint

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says; the names are those of the flags."""

    url: str
    model: str | None
    api_key: str | None
    endpoint: Endpoint
    concurrency: tuple[int, ...]
    rate: tuple[float, ...]
    """Not empty: open loop at these rates instead of ``concurrency``."""
    requests: int | None
    prompt_tokens: int
    output_tokens: int
    temperature: float
    ignore_eos: bool
    timeout: float
    seed: int | None
    json: Path | None

    def requests_for(self, streams: int) -> int:
        """Requests of a closed loop: every stream has at least one."""
        return max(self.requests or max(2 * streams, 4), streams)

    @property
    def requests_of_open_loop(self) -> int:
        """Requests at each rate."""
        return self.requests or 32


def parse(argv: Sequence[str]) -> Options:
    """Read the command line.

    Raises:
        SystemExit: it is wrong, or asks for help; argparse has said so.
    """
    return Options(**vars(_parser().parse_args(argv)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tandem bench",
        description="Measure any server with the OpenAI interface by streaming answers from it.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--url",
        type=server_root,
        default="http://127.0.0.1:8000",
        help="the server, with or without /v1 (default: %(default)s)",
    )
    add("--model", help="default: the first one in /v1/models")
    add("--api-key", type=api_key, help="sent as a bearer token")
    add("--endpoint", choices=("chat", "completions"), default="chat", help="default: %(default)s")
    load = parser.add_mutually_exclusive_group()
    load.add_argument(
        "--concurrency",
        type=_positive_list(int),
        default=(1, 4, 16, 64),
        metavar="N,N,...",
        help="streams at once; one row of the report for each (default: 1,4,16,64)",
    )
    load.add_argument(
        "--rate",
        type=_positive_list(float),
        default=(),
        metavar="R,R,...",
        help="instead of fixed streams: requests per second at Poisson times; one row for each",
    )
    add(
        "--requests",
        type=_positive(int),
        help="requests for each row (default: two for each stream and at least 4, or 32 with --rate); "
        "never fewer than streams",
    )
    add("--prompt-tokens", type=_positive(int), default=128, help="default: %(default)s")
    add("--output-tokens", type=_positive(int), default=128, help="default: %(default)s")
    add("--temperature", type=temperature, default=0.0, help="default: %(default)s")
    add(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask for answers of exactly --output-tokens (ignore_eos, min_tokens) unless the server refuses",
    )
    add(
        "--timeout",
        type=_positive(float),
        default=600.0,
        help="seconds without a byte after which a request has failed (default: %(default)s)",
    )
    add(
        "--seed",
        type=int,
        help="of the prompts and Poisson times; default: a new one, so no prefix is cached",
    )
    add("--json", type=Path, metavar="FILE", help="also write the figures there")
    return parser


def _positive(kind: Callable[[str], Number]) -> Callable[[str], Number]:
    def parse_one(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
        return value

    return parse_one


def _positive_list(kind: Callable[[str], Number]) -> Callable[[str], tuple[Number, ...]]:
    parse_one = _positive(kind)
    return lambda text: tuple(parse_one(part) for part in text.split(","))

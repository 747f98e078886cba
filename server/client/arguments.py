"""Types of the clients' command line arguments, for argparse: what can't be sent is refused there."""

from __future__ import annotations

import argparse
import math

import httpx

from server.client.api_client import api_root


def server_root(text: str) -> str:
    """The URL under which a server's ``/v1/...`` lies.

    Raises:
        argparse.ArgumentTypeError: it is no HTTP URL.
    """
    root = api_root(text)
    try:
        url = httpx.URL(root)
    except httpx.InvalidURL as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no URL: {error}") from None
    if url.scheme not in ("http", "https") or not url.host or not 0 < (url.port or 80) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is no HTTP URL with a host and a port below 65536")
    return root


def api_key(text: str) -> str:
    """A key that fits into an HTTP header.

    Raises:
        argparse.ArgumentTypeError: it does not.
    """
    if not (text.isascii() and text.isprintable()):
        raise argparse.ArgumentTypeError("a key has printable ASCII characters only")
    return text


def temperature(text: str) -> float:
    """A finite number; the server knows which ones it takes.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no finite number")
    return value

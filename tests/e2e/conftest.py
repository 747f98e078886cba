"""One daemon for the tests that don't break it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.daemon import Daemon

MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def shared_daemon() -> Iterator[Daemon]:
    with Daemon("--dtype", "float32", "--host-kv-pages", "1024", "--max-running", "32") as daemon:
        yield daemon


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Iterator[Daemon]:
    """The shared daemon; each test must leave it idle and healthy."""
    yield shared_daemon
    shared_daemon.wait_until_idle()
    with shared_daemon.client() as client:
        assert client.get("/health").status_code == 200

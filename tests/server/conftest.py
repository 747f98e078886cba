from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from server.app import create_app
from server.services import Services
from tests.server.fakes import FakeEngine, make_services


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def services(engine: FakeEngine) -> Services:
    return make_services(engine)


@pytest.fixture
async def http(services: Services) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, without a network."""
    transport = httpx.ASGITransport(create_app(services), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client

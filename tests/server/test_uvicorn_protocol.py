"""A client that never reads the end of a response does not keep its connection."""

from __future__ import annotations

import asyncio

import pytest
import uvicorn
from uvicorn.server import ServerState

from server.http.uvicorn_protocol import HttpProtocol

pytestmark = pytest.mark.anyio


class FakeTransport:
    """What is left to write, and how the connection ended."""

    def __init__(self, unread: int, closing: bool) -> None:
        self.unread = unread
        self.closing = closing
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def resume_reading(self) -> None:
        pass


async def ended_response(unread: int, closing: bool) -> FakeTransport:
    """The connection some time after a response ended with ``unread`` bytes not taken by the client."""
    config = uvicorn.Config(lambda scope: None, http=HttpProtocol, timeout_keep_alive=0)
    config.load()
    protocol = HttpProtocol(config, ServerState(), {}, asyncio.get_running_loop())
    transport = FakeTransport(unread, closing)
    protocol.transport = transport
    protocol.flow = uvicorn.protocols.http.flow_control.FlowControl(transport)
    protocol.on_response_complete()
    await asyncio.sleep(0.02)
    return transport


@pytest.mark.parametrize("closing", [False, True])
@pytest.mark.parametrize("unread", [0, 1])
async def test_unread_bytes_are_given_up_after_the_idle_time(unread: int, closing: bool):
    transport = await ended_response(unread, closing)
    assert transport.closing
    assert transport.aborted == bool(unread)

"""The engine's end of the socket, over a real socket pair."""

from __future__ import annotations

import socket
import threading

import msgspec
import pytest

from engine.connection import Connection
from scheduler.messages import AbortRequest, FromEngine, LoadFailed, Start, ToEngine
from scheduler.types import RequestId

START = Start(
    model_kind="gguf",
    model_path="model.gguf",
    model_name="model",
    dtype="float32",
    quantization="auto",
    max_model_len=None,
    page_size=16,
    host_kv_pages=4,
    host_kv_gib=None,
    kv_dtype="auto",
    cpu_kernels="auto",
    max_batch_tokens=64,
    max_running=4,
    prefix_caching=True,
    threads=None,
    device="cpu",
    device_kv_pages=None,
    emulate_profile=None,
    profile=None,
    plan_mode="auto",
    tpot_limit=None,
    host_tpot_limit=None,
    log_level="info",
)


def frame(message: ToEngine) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "big") + body


@pytest.fixture
def pair():
    server, engine = socket.socketpair()
    connection = Connection(engine)
    yield server, connection
    server.close()
    connection.close()


def test_start_then_messages_in_order_even_in_pieces(pair):
    server, connection = pair
    aborts = [AbortRequest(RequestId(str(number)), number) for number in range(3)]
    data = frame(START) + b"".join(frame(one) for one in aborts)
    server.sendall(data[:7])
    threading.Timer(0.05, lambda: server.sendall(data[7:])).start()
    assert connection.receive_start() == START
    taken: list[object] = []
    while len(taken) < 3:
        taken += connection.take(wait=True)
    assert taken == aborts
    assert connection.take(wait=False) == []


def test_a_server_that_goes_wakes_a_waiting_loop(pair):
    server, connection = pair
    server.sendall(frame(START))
    connection.receive_start()
    threading.Timer(0.05, server.close).start()
    with pytest.raises(EOFError):
        connection.take(wait=True)
    with pytest.raises(EOFError):
        connection.take(wait=False)


def test_close_sends_what_was_handed_over():
    server, engine = socket.socketpair()
    connection = Connection(engine)
    connection.send(LoadFailed("no such tensor"))
    connection.close()
    received = b""
    while chunk := server.recv(4096):
        received += chunk
    assert msgspec.msgpack.decode(received[4:], type=FromEngine) == LoadFailed("no such tensor")


def test_something_else_than_start_is_refused(pair):
    server, connection = pair
    server.sendall(frame(AbortRequest(RequestId("a"))))
    with pytest.raises(ValueError, match="must be Start"):
        connection.receive_start()


def test_an_absurd_length_is_refused(pair):
    server, connection = pair
    server.sendall(b"\xff\xff\xff\xff")
    with pytest.raises(ValueError, match="4294967295 bytes"):
        connection.receive_start()

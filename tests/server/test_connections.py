"""What only a real connection shows: leaving, not reading, HTTP/1.0, and when bytes go out."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator

import httpx
import msgspec
import pytest

from tests.server.fakes import FACTS, MODEL, FakeEngine, alphabet, says
from tests.server.live_server import LiveServer, eventually, live_server, post
from tests.server.sse import events

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODY = {"model": MODEL, "prompt": "hi", "max_tokens": 200}
ABORTED = 'requests_finished_total{endpoint="/v1/completions",model_name="org/tiny",reason="abort"}'


@pytest.fixture
def server() -> Iterator[LiveServer]:
    with live_server(FakeEngine(script=alphabet, pause=0.005)) as server:
        yield server


def receive_all(connection: socket.socket) -> bytes:
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received


def receive_rest(connection: socket.socket) -> bytes:
    """Until the connection is closed or, since it was dropped with data on the way, reset."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            received += piece
    return received


def receive_until(connection: socket.socket, wanted: bytes) -> bytes:
    received = b""
    while wanted not in received:
        piece = connection.recv(65536)
        assert piece, received
        received += piece
    return received


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("held", [True, False])
def test_leaving_aborts_at_once(server, stream, held):
    """Queued (held) or running, streamed or not."""
    engine = server.engine
    engine.held = held
    connection = server.connect()
    connection.sendall(post(COMPLETIONS, {**BODY, "stream": stream, "n": 2}))
    eventually(lambda: bool(engine.live) and (held or max(engine.produced.values(), default=0) >= 3))
    connection.close()
    eventually(lambda: not engine.live)
    (request,) = engine.requests
    assert engine.aborted == [(request.request_id, None)]
    engine.held = False
    eventually(lambda: server.metric(ABORTED) == 1)
    assert server.metric('requests_running{model_name="org/tiny"}') == 0
    assert server.metric('requests_waiting{model_name="org/tiny"}') == 0
    assert server.metric('choices_finished_total{model_name="org/tiny",reason="abort"}') == 2
    assert server.metric('e2e_request_latency_seconds_count{model_name="org/tiny"}') == 1


def test_leaving_during_one_prompt_of_several_aborts_all(server):
    connection = server.connect()
    connection.sendall(post(COMPLETIONS, {**BODY, "stream": True, "prompt": ["a", "b", "c"]}))
    eventually(lambda: len(server.engine.produced) == 3)
    connection.close()
    eventually(lambda: not server.engine.live)
    assert len(server.engine.aborted) == 3


def test_leaving_within_the_body(server):
    connection = server.connect()
    connection.sendall(post(COMPLETIONS, BODY)[:-20])
    time.sleep(0.05)
    connection.close()
    eventually(lambda: server.metric(ABORTED) == 1)
    assert server.engine.requests == []


def test_a_client_that_never_reads_is_aborted():
    engine = FakeEngine(
        script=lambda request, choice: [97] * 10_000,
        facts=msgspec.structs.replace(FACTS, context_length=20_000),
    )
    with live_server(engine, write_timeout=0.3) as server:
        connection = server.connect(receive_buffer=4096)
        body = {**BODY, "stream": True, "n": 128, "max_tokens": 10_000}
        connection.sendall(post(COMPLETIONS, body))
        eventually(lambda: bool(engine.requests))
        eventually(lambda: not engine.live)
        (request,) = engine.requests
        assert engine.aborted == [(request.request_id, None)]
        # The rest would have been 300 MB; what was produced is what fitted into the kernel's buffers.
        assert engine.produced[request.request_id] < 1000
        assert server.metric(ABORTED) == 1
        eventually(lambda: not server.http.server_state.connections)
        # A system that gave up on the client says so only when it hears from it: not if the client had room
        # by its last word, so that reading makes it send nothing.
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"x")
        assert b"[DONE]" not in receive_rest(connection)
        assert httpx.get(server.url + "/health").status_code == 200


def test_a_slow_client_gets_everything():
    engine = FakeEngine(script=alphabet, tokens_per_batch=2)
    with live_server(engine, write_timeout=5.0) as server:
        connection = server.connect(receive_buffer=4096)
        connection.sendall(post(COMPLETIONS, {**BODY, "stream": True, "n": 60}, version="1.0"))
        received = b""
        while piece := connection.recv(4096):
            received += piece
            time.sleep(0.0002)
        chunks = events(received.partition(b"\r\n\r\n")[2].decode())
        assert sum(chunk["choices"][0]["finish_reason"] == "length" for chunk in chunks) == 60
        assert sum(len(chunk["choices"][0]["text"]) for chunk in chunks) == 60 * 200


def test_tokens_are_sent_when_they_come(server):
    engine = server.engine
    engine.held = True
    connection = server.connect()
    connection.sendall(
        post(CHAT, {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True})
    )
    head = receive_until(connection, b"\r\n\r\n")
    assert b"200 OK" in head and b"data:" not in head
    engine.pause, engine.held = 0.0, False
    assert b'"role":"assistant"' in receive_until(connection, b'"content":"a"')
    connection.close()


def test_one_write_for_each_batch():
    engine = FakeEngine(script=alphabet, pause=0.02)
    with live_server(engine) as server:
        connection = server.connect()
        connection.sendall(post(COMPLETIONS, {**BODY, "stream": True, "n": 4, "max_tokens": 3}))
        received = receive_until(connection, b"0\r\n\r\n").partition(b"\r\n\r\n")[2]
    sizes = []
    while received:
        size, _, rest = received.partition(b"\r\n")
        sizes.append(rest[: int(size, 16)].count(b"data: "))
        received = rest[int(size, 16) + 2 :]
    # The last batch brings text, a finish reason for each choice, and the end of the stream.
    assert sizes == [4, 4, 9, 0]


def test_a_quiet_stream_is_kept_alive_while_queued():
    engine = FakeEngine(script=says("Hi"), held=True)
    with live_server(engine, sse_keepalive=0.05) as server:
        connection = server.connect()
        connection.sendall(post(COMPLETIONS, {**BODY, "stream": True}, version="1.0"))
        received = receive_until(connection, b": ping\n\n: ping\n\n")
        assert b"data:" not in received
        engine.held = False
        body = (received + receive_all(connection)).partition(b"\r\n\r\n")[2].decode()
        assert [chunk["choices"][0]["text"] for chunk in events(body)] == ["H", "i", ""]


@pytest.mark.parametrize("stream", [True, False])
def test_http_1_0(server, stream):
    connection = server.connect()
    connection.sendall(post(COMPLETIONS, {**BODY, "max_tokens": 4, "stream": stream}, version="1.0"))
    head, _, body = receive_all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    if stream:
        assert "".join(c["choices"][0]["text"] for c in events(body.decode())) == "abcd"
    else:
        assert f"content-length: {len(body)}".encode() in head.lower()
        assert msgspec.json.decode(body)["choices"][0]["text"] == "abcd"


def test_http_1_0_errors_and_head(server):
    for request, status in (
        (b"GET /nope HTTP/1.0\r\n\r\n", b"404"),
        (b"HEAD /health HTTP/1.0\r\n\r\n", b"200"),
    ):
        connection = server.connect()
        connection.sendall(request)
        head, _, body = receive_all(connection).partition(b"\r\n\r\n")
        assert head.split()[1] == status
        assert bool(body) == (status == b"404")


def test_what_is_no_http_gets_an_error_object(server):
    connection = server.connect()
    connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
    head, _, body = receive_all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert msgspec.json.decode(body)["error"]["type"] == "invalid_request_error"


def test_head_has_the_length_but_no_body(server):
    get, head = (httpx.request(method, server.url + "/v1/models") for method in ("GET", "HEAD"))
    assert head.status_code == 200 and head.content == b""
    assert head.headers["content-length"] == get.headers["content-length"] == str(len(get.content))


@pytest.mark.parametrize("declared", [True, False])
def test_a_client_with_too_long_a_body_can_send_it_and_gets_an_answer(server, declared):
    size = 20 << 20
    length = f"Content-Length: {size}" if declared else "Transfer-Encoding: chunked"
    connection = server.connect()
    connection.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n".encode())
    connection.sendall(b"x" * size if declared else b"%x\r\n%s\r\n0\r\n\r\n" % (size, b"x" * size))
    head, _, body = receive_all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    assert msgspec.json.decode(body)["error"]["code"] == "request_too_large"


def test_a_client_that_asks_first_is_told_not_to_send(server):
    connection = server.connect()
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n"
    )
    received = receive_all(connection)
    assert received.startswith(b"HTTP/1.1 413 ")


def test_connections_are_kept_and_pipelined(server):
    connection = server.connect()
    once = post(COMPLETIONS, {**BODY, "max_tokens": 1})
    connection.sendall(once + once + b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
    received = receive_until(connection, b'"version"')
    assert received.count(b"HTTP/1.1 200 OK") == 3
    connection.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("bye", ["fin", "rst"])
def test_a_client_that_pipelines_and_leaves_is_aborted(stream, bye):
    engine = FakeEngine(script=alphabet, pause=0.01)
    with live_server(engine) as server:
        connection = server.connect()
        body = {**BODY, "stream": stream, "max_tokens": 200}
        connection.sendall(post(COMPLETIONS, body) + b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        eventually(lambda: bool(engine.live))
        if bye == "rst":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        eventually(lambda: not engine.live)
        assert all(count < 100 for count in engine.produced.values()), "it was computed to the end"


def test_pipelined_requests_are_answered_in_order():
    with live_server(FakeEngine(script=says("Hi"), pause=0.02)) as server:
        connection = server.connect()
        health = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        last = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        connection.sendall(post(COMPLETIONS, BODY) + health * 3 + last)
        received = receive_all(connection)
    assert received.count(b"200 OK") == 5
    assert received.index(b"text_completion") < received.index(b'"status"') < received.rindex(b'"version"')


def test_too_many_pipelined_requests_drop_the_connection():
    engine = FakeEngine(script=alphabet, held=True)
    with live_server(engine) as server:
        connection = server.connect()
        connection.sendall(post(COMPLETIONS, BODY))
        eventually(lambda: bool(engine.live))
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
        engine.held = False
        eventually(lambda: not server.http.server_state.connections)
        eventually(lambda: not engine.live)


def test_a_client_that_reads_nothing_is_noticed_while_the_systems_buffers_take_it_all():
    """A few hundred kilobytes never make a write wait, so only the system sees that nobody reads."""
    engine = FakeEngine(script=alphabet, pause=0.005)
    with live_server(engine, write_timeout=0.4) as server:
        connection = server.connect(receive_buffer=4096)
        connection.sendall(post(COMPLETIONS, {**BODY, "stream": True, "max_tokens": 250, "n": 4}))
        eventually(lambda: bool(engine.produced))
        eventually(lambda: not engine.live)
        assert all(count < 250 for count in engine.produced.values()), "it was computed to the end"
        connection.close()


def test_endless_headers_end_the_connection():
    """The 431 is written, but what the client sent meanwhile may reset the connection before it is read."""
    with live_server(FakeEngine()) as server:
        connection = server.connect()
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        with pytest.raises(ConnectionError):
            for _ in range(100_000):
                connection.sendall(b"X-Filler: " + b"y" * 1000 + b"\r\n")
        eventually(lambda: not server.http.server_state.connections)
        connection.close()


def test_long_headers_below_the_limit_are_served():
    with live_server(FakeEngine()) as server:
        connection = server.connect()
        for piece in (
            b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n",
            b"X-A: " + b"y" * 60_000,
            b"\r\n\r\n",
        ):
            connection.sendall(piece)
        assert receive_all(connection).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("sent", [b"GET", b"GET /health HTTP/1.1\r\nHost: x\r\nX-Half: "])
def test_headers_that_do_not_end_are_not_waited_for(monkeypatch, sent):
    monkeypatch.setattr("server.http.uvicorn_protocol.HEADER_SECONDS", 0.1)
    with live_server(FakeEngine()) as server:
        connection = server.connect()
        connection.sendall(sent)
        eventually(lambda: bool(server.http.server_state.connections))
        eventually(lambda: not server.http.server_state.connections)
        connection.close()


def test_a_silent_connection_is_idle_from_its_beginning(monkeypatch):
    monkeypatch.setattr("server.daemon.http_server.KEEP_ALIVE", 0.1)
    with live_server(FakeEngine()) as server:
        connection = server.connect()
        assert receive_all(connection) == b""


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("server.http.body.PIECE_SECONDS", 0.1)
    with live_server(FakeEngine()) as server:
        connection = server.connect()
        connection.sendall(post(COMPLETIONS, BODY)[:-5])
        received = receive_all(connection)
        assert received.startswith(b"HTTP/1.1 408 ") and b'"request_timeout"' in received
        assert server.metric('requests_rejected_total{model_name="org/tiny",reason="invalid"}') == 1

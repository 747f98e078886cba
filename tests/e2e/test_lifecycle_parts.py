"""The lifecycle's small parts: what the terminal shows while loading, and the listening socket."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import socket
from pathlib import Path

import pytest

from configs.settings import Settings
from engine.weights.source import ModelSource
from scheduler.messages import Loading
from server.daemon.listener import ListenError, bind, listen, url
from server.daemon.loading_progress import LoadingProgress
from server.daemon.stop_signals import StopSignals
from server.lifecycle import printable, start_message


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def loading(done: int) -> Loading:
    return Loading(tensors_done=done, tensors_total=4, bytes_done=done * 25_000_000, bytes_total=100_000_000)


def test_a_terminal_gets_one_line_that_is_redrawn() -> None:
    terminal = Terminal()
    progress = LoadingProgress("tiny", terminal, clock=lambda: 0.0)
    for done in (0, 2, 4):
        progress.update(loading(done))
    first, second, last = terminal.getvalue().split("\r")[1:]
    assert first.startswith(f"Loading tiny: [{'.' * 30}] 0 %, 0 of 100 MB, 0 of 4 tensors")
    assert second.startswith(f"Loading tiny: [{'#' * 15}{'.' * 15}] 50 %, 50 of 100 MB, 2 of 4 tensors")
    assert last.startswith(f"Loading tiny: [{'#' * 30}] 100 %") and last.endswith("\n")
    assert "\n" not in first + second


def test_a_file_gets_a_line_every_few_seconds_and_a_last_one() -> None:
    now = [0.0]
    stream = io.StringIO()
    progress = LoadingProgress("tiny", stream, clock=lambda: now[0])
    for now[0], done in ((0.0, 0), (1.0, 1), (2.9, 2), (3.1, 3), (3.2, 4)):
        progress.update(loading(done))
    assert [line.split(",")[0] for line in stream.getvalue().splitlines()] == [
        "Loading tiny: 0 %",
        "Loading tiny: 75 %",
        "Loading tiny: 100 %",
    ]


def test_an_empty_checkpoint_is_no_division_by_zero() -> None:
    stream = io.StringIO()
    LoadingProgress("tiny", stream).update(
        Loading(tensors_done=0, tensors_total=0, bytes_done=0, bytes_total=0)
    )
    assert "0 of 0 tensors" in stream.getvalue()


def test_a_bound_port_refuses_connections_until_it_listens() -> None:
    with bind("127.0.0.1", 0) as sock:
        address = sock.getsockname()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=5)
        listen(sock, 60.0)
        socket.create_connection(address, timeout=5).close()
        assert url("127.0.0.1", sock) == f"http://127.0.0.1:{address[1]}"


def test_the_second_of_two_bound_sockets_can_not_listen() -> None:
    with bind("127.0.0.1", 0) as first:
        with bind("127.0.0.1", first.getsockname()[1]) as second:
            listen(first, 60.0)
            with pytest.raises(ListenError, match="is in use"):
                listen(second, 60.0)
        with pytest.raises(ListenError, match=f"port {first.getsockname()[1]} on 127.0.0.1 is in use"):
            bind("127.0.0.1", first.getsockname()[1])


def test_localhost_is_the_ipv4_one_and_ipv6_urls_have_brackets() -> None:
    with bind("localhost", 0) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"
        assert url("::1", sock).startswith("http://[::1]:")


def test_signals_are_counted() -> None:
    async def test() -> None:
        with StopSignals() as signals:
            second = asyncio.create_task(signals.second())
            os.kill(os.getpid(), signal.SIGINT)
            await signals.first()
            assert not second.done()
            os.kill(os.getpid(), signal.SIGTERM)
            assert await second == 143

    asyncio.run(asyncio.wait_for(test(), 10))


def test_every_option_of_the_engine_reaches_it(tmp_path: Path) -> None:
    settings = Settings(
        dtype="float32",
        quantization="int8",
        max_model_len=9,
        page_size=8,
        host_kv_pages=7,
        host_kv_gib=1.5,
        kv_dtype="int8",
        cpu_kernels="scalar",
        max_batch_tokens=99,
        max_running=3,
        prefix_caching=False,
        threads=2,
        device="emulated",
        device_kv_pages=5,
        emulate_profile="/pace.json",
        profile="/plans.json",
        plan_mode="catch-up",
        tpot_limit=0.1,
        host_tpot_limit=0.2,
        log_level="debug",
        log_format="json",
    )
    start = start_message(settings, ModelSource("gguf", tmp_path / "m.gguf", "m"))
    assert (start.model_kind, start.model_path, start.model_name) == ("gguf", str(tmp_path / "m.gguf"), "m")
    shared = set(Settings.__struct_fields__) & set(start.__struct_fields__)
    assert len(shared) == 21
    for name in shared:
        assert getattr(start, name) == getattr(settings, name) != getattr(Settings(), name)


def test_a_file_name_that_is_no_text_can_be_shown() -> None:
    assert printable(os.fsdecode(b"model-\xff-\xc3\xa4")) == "model-\ufffd-ä"

"""How the server is reached: TLS and its certificates, Unix sockets, keys that are read again."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvloop

from configs.settings import Settings
from server.app import create_app
from server.daemon.doors import Doors
from server.daemon.listener import ListenError
from server.daemon.reloading import ReloadSignal
from server.daemon.tls import CertificateError, Tls
from tests.builders import certificates
from tests.server.fakes import FakeEngine, make_services
from tests.server.live_server import PATIENCE, eventually


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    return certificates.write(tmp_path)


@contextmanager
def opened(**settings: object) -> Iterator[Doors]:
    """The application behind the doors, served from a thread."""
    with Doors(Settings(port=0, **settings)) as doors:  # type: ignore[arg-type]
        server = doors.open(create_app(make_services(FakeEngine(), keys=doors.keys)))

        def run() -> None:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(server.run_until_closed())

        thread = threading.Thread(target=run)
        thread.start()
        try:
            eventually(lambda: server.started)
            yield doors
        finally:
            server.close()
            thread.join(PATIENCE)


def certificate(url: str, context: ssl.SSLContext) -> str:
    """Who the server says it is."""
    host, port = url.removeprefix("https://").split(":")
    with (
        socket.create_connection((host, int(port)), PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        shown = secured.getpeercert()
        assert shown
        return dict(pair for (pair,) in shown["subject"])["commonName"]


def test_tls_with_a_certificate_that_is_exchanged(files: dict[str, Path], tmp_path: Path) -> None:
    current = tmp_path / "current.pem"
    current.write_text(certificates.FIRST)
    trusting = ssl.create_default_context(cafile=str(files["authority"]))
    with opened(tls_cert=str(current)) as doors:
        assert doors.url.startswith("https://127.0.0.1:")
        assert httpx.get(doors.url + "/v1/models", verify=trusting).status_code == 200
        assert certificate(doors.url, trusting) == "first"
        with pytest.raises(httpx.HTTPError):
            httpx.get(doors.url.replace("https", "http") + "/v1/models")
        (reload,) = doors.readers().values()
        current.write_text("nothing")
        with pytest.raises(CertificateError, match=r"can't be set up with .*current\.pem"):
            reload()
        assert certificate(doors.url, trusting) == "first"
        current.write_text(certificates.SECOND)
        reload()
        assert certificate(doors.url, trusting) == "second"


def test_clients_show_certificates(files: dict[str, Path]) -> None:
    options = {"tls_cert": str(files["first"]), "tls_ca": str(files["authority"])}
    nobody = ssl.create_default_context(cafile=str(files["authority"]))
    client = ssl.create_default_context(cafile=str(files["authority"]))
    client.load_cert_chain(files["client"])
    with opened(tls_client_auth="required", **options) as doors:
        assert httpx.get(doors.url + "/health", verify=client).status_code == 200
        with pytest.raises(httpx.HTTPError):
            httpx.get(doors.url + "/health", verify=nobody)


def test_wrong_certificates(files: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"nowhere\.pem: .*No such file"):
        Tls(Settings(tls_cert=str(tmp_path / "nowhere.pem")))
    with pytest.raises(CertificateError, match="KEY_VALUES_MISMATCH"):
        Tls(Settings(tls_cert=str(files["first"]), tls_key=str(files["second"])))


def test_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "tandem.sock")
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(path)
    with opened(uds=path) as doors:
        assert doors.url == f"unix:{path}"
        with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://tandem") as client:
            assert client.get("/health").status_code == 200
            assert (
                client.post("/v1/completions", json={"model": "org/tiny", "prompt": "x"}).status_code == 200
            )
        with pytest.raises(ListenError, match="in use"), Doors(Settings(uds=path)):
            pass
    assert not Path(path).exists()


def test_a_path_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(ListenError, match="in use"), Doors(Settings(uds=str(path))):
        pass
    assert path.read_text() == "mine"


def test_a_server_open_to_everybody_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for host, keys, warned in (("0.0.0.0", (), True), ("0.0.0.0", ("k",), False), ("127.0.0.1", (), False)):
        caplog.clear()
        with Doors(Settings(host=host, port=0, api_key=keys)):
            assert ("there is no --api-key" in caplog.text) == warned


def test_a_signal_reads_keys_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_text("old")
    doors = Doors(Settings(api_key_file=str(file)))
    caplog.set_level(logging.INFO)

    async def hang_up() -> None:
        with ReloadSignal(doors.readers()):
            for content in ("new", ""):
                file.write_text(content)
                os.kill(os.getpid(), signal.SIGHUP)
                await asyncio.sleep(0.02)

    asyncio.run(hang_up())
    assert doors.keys.find(["new"]) and not doors.keys.find(["old"])
    assert "API keys read again: 1 keys" in caplog.text
    assert "API keys not read again, nothing changes" in caplog.text

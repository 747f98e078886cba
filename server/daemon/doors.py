"""How the server is reached: its socket, its certificates and its keys, all there before anything slow."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from starlette.types import ASGIApp

from configs.settings import Settings
from server.daemon.http_server import HttpServer
from server.daemon.listener import bind, bind_unix, is_loopback, listen, url
from server.daemon.tls import Tls
from server.http.keys import KeyRing

logger = logging.getLogger(__name__)


class Doors:
    """Bound when it is entered, open for connections once ``open`` is called.

    Args:
        settings: of the daemon.

    Raises:
        KeyFileError: the keys can't be read.
        CertificateError: TLS can't be set up.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.keys = KeyRing(settings.api_key, Path(settings.api_key_file) if settings.api_key_file else None)
        self._tls = Tls(settings) if settings.tls_cert else None
        self.admin_keys = KeyRing((settings.admin_key,) if settings.admin_key else ())
        self._listener: socket.socket
        self._admin: socket.socket | None = None

    def __enter__(self) -> Self:
        """Take the address.

        Raises:
            ListenError: it can't be had.
        """
        settings = self._settings
        self._listener = bind_unix(settings.uds) if settings.uds else bind(settings.host, settings.port)
        if settings.admin_port is not None:
            with contextlib.ExitStack() as on_failure:
                on_failure.callback(self._listener.close)
                self._admin = bind(settings.admin_host, settings.admin_port)
                on_failure.pop_all()
            if not self.admin_keys.required and not is_loopback(self._admin):
                logger.warning(
                    "everybody who can reach %s is an operator: there is no --admin-key", self.admin_url
                )
        if not self.keys.required and not is_loopback(self._listener):
            logger.warning(
                "everybody who can reach %s can use this server: there is no --api-key", settings.host
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        if self._admin is not None:
            self._admin.close()
        if self._settings.uds:
            with contextlib.suppress(OSError):
                Path(self._settings.uds).unlink()

    @property
    def url(self) -> str:
        """Where clients find the server."""
        return url(self._settings.host, self._listener, tls=self._tls is not None)

    def open(self, app: ASGIApp) -> HttpServer:
        """Accept connections; they are answered once the server runs.

        Raises:
            ListenError: another process that had bound the address too was first.
        """
        where = self.url
        listen(self._listener, self._settings.write_timeout)
        logger.info("listening on %s", where)
        return HttpServer(app, self._listener, None if self._tls is None else self._tls.context)

    @property
    def admin_url(self) -> str:
        """Where operators find it."""
        return "" if self._admin is None else url(self._settings.admin_host, self._admin)

    def open_admin(self, app: ASGIApp) -> HttpServer | None:
        """Accept operators' connections, if there is a listener for them.

        Raises:
            ListenError: another process that had bound the address too was first.
        """
        if self._admin is None:
            return None
        logger.info("listening for operators on %s", self.admin_url)
        listen(self._admin, self._settings.write_timeout)
        return HttpServer(app, self._admin)

    def readers(self) -> dict[str, Callable[[], str]]:
        """What SIGHUP reads again."""
        readers = {"API keys": self.keys.reload} if self._settings.api_key_file else {}
        return readers | ({"certificate": self._tls.reload} if self._tls else {})

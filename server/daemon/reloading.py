"""SIGHUP: what is in files is read again, without a pause for anybody."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from server.daemon.tls import CertificateError
from server.http.keys import KeyFileError

logger = logging.getLogger(__name__)


class ReloadSignal:
    """Calls every reader at each SIGHUP, while it is entered in the main thread's running loop.

    Args:
        readers: by the name of what they read. One that fails has changed nothing.
    """

    def __init__(self, readers: Mapping[str, Callable[[], str]]) -> None:
        self._readers = readers

    def __enter__(self) -> Self:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reload)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)

    def reload(self) -> None:
        """Read everything again."""
        if not self._readers:
            logger.info("SIGHUP: there is nothing to read again")
        for name, read in self._readers.items():
            try:
                logger.info("SIGHUP: %s read again: %s", name, read())
            except (KeyFileError, CertificateError) as error:
                logger.error("SIGHUP: %s not read again, nothing changes: %s", name, error)

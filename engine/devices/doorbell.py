"""Wakes the host when something has happened, whoever made it happen."""

from __future__ import annotations

import os
import select


class Doorbell:
    """An eventfd. Streams and native threads ring it, the host sleeps at it."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def ring(self) -> None:
        """Let ``wait`` return, or its next call if nobody is in it. Any thread may call this."""
        os.eventfd_write(self.fd, 1)

    def wait(self, timeout: float) -> bool:
        """Sleep until it rings, ``timeout`` seconds at most.

        Returns:
            Whether it has rung since the last call.
        """
        # select(2), because the timeouts of poll and epoll are whole milliseconds.
        if not select.select((self.fd,), (), (), max(0.0, timeout))[0]:
            return False
        os.eventfd_read(self.fd)
        return True

    def close(self) -> None:
        """Give the descriptor back. Nobody may ring from now on."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

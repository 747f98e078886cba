"""The engine's end of the socket: one thread reads, one writes, the loop thread does neither."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections import deque
from queue import SimpleQueue

import msgspec

from scheduler.messages import MAX_MESSAGE_BYTES, FromEngine, Order, Start, ToEngine

_LENGTH_BYTES = 4

logger = logging.getLogger(__name__)


class Connection:
    """Implements scheduler.iteration_loop.Inbox, and hands messages to the server."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
        self._arrived = threading.Condition()
        self._inbox: deque[Order] = deque()
        self._closed = False
        self._outbox: SimpleQueue[FromEngine | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="engine-writer", daemon=True)
        self._writer.start()

    def receive_start(self) -> Start:
        """Read the first message, then let the reader thread take over.

        Raises:
            EOFError: the server is gone.
            ValueError: the server said something else first.
        """
        message = self._read_message()
        if not isinstance(message, Start):
            raise ValueError(f"the first message must be Start, not {type(message).__name__}")
        threading.Thread(target=self._read, name="engine-reader", daemon=True).start()
        return message

    def take(self, wait: bool) -> list[Order]:
        """Everything that arrived since the last call; with ``wait``, blocks until something has.

        Raises:
            EOFError: the server is gone.
        """
        with self._arrived:
            while wait and not self._inbox and not self._closed:
                self._arrived.wait()
            if self._closed:
                raise EOFError("the server closed the connection")
            messages = list(self._inbox)
            self._inbox.clear()
        return messages

    def send(self, message: FromEngine) -> None:
        """Hand a message to the writer thread; encoding happens there."""
        self._outbox.put(message)

    def close(self) -> None:
        """Send what was handed over, then close."""
        self._outbox.put(None)
        self._writer.join()
        self._socket.close()

    def _read(self) -> None:
        try:
            while True:
                message = self._read_message()
                if isinstance(message, Start):
                    raise ValueError("the engine has been started already")
                with self._arrived:
                    self._inbox.append(message)
                    self._arrived.notify()
        except EOFError:
            pass
        except (ValueError, msgspec.DecodeError) as error:
            logger.error("the server sent what can't be read: %s", error)
        finally:
            with self._arrived:
                self._closed = True
                self._arrived.notify()

    def _read_message(self) -> ToEngine:
        length = int.from_bytes(self._read_exactly(_LENGTH_BYTES), "big")
        if length > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {length} bytes")
        return self._decoder.decode(self._read_exactly(length))

    def _read_exactly(self, count: int) -> bytes:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            try:
                received = self._socket.recv_into(view)
            except OSError as error:
                raise EOFError("the connection broke") from error
            if received == 0:
                raise EOFError("the server closed the connection")
            view = view[received:]
        return bytes(data)

    def _write(self) -> None:
        encoder = msgspec.msgpack.Encoder()
        try:
            while (message := self._outbox.get()) is not None:
                body = encoder.encode(message)
                self._socket.sendall(len(body).to_bytes(_LENGTH_BYTES, "big") + body)
        except OSError:
            return
        finally:
            # However writing ended, nobody may wait for more: the reader, and so the loop, ends too.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

"""One life of the engine process: spawning it, its socket, its end.

The socket is one half of a pair, inherited by number: there is no path on disk, and whichever side
ends, the other reads end-of-file. The engine has a session of its own, so that the terminal's
Ctrl-C reaches the server only, and on Linux the kernel kills it with the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import msgspec

from configs.environment import inherited_environment
from engine.thread_environment import THREAD_ENVIRONMENT
from scheduler.messages import MAX_MESSAGE_BYTES, FromEngine, ToEngine

ENGINE_MODULE = "engine.process"
"""Run as ``__main__`` with the socket's file descriptor as its only argument."""

# prctl belongs in the child: between fork and exec (preexec_fn) other threads' locks may be held.
_PR_SET_PDEATHSIG = 1
_BOOTSTRAP = f"""\
import ctypes, runpy, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {int(signal.SIGKILL)})
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""

_LENGTH_BYTES = 4
_EXIT_GRACE = 1.0
"""Seconds a process may outlive its socket, or its socket (held by a child of it) the process."""

logger = logging.getLogger(__name__)


class EngineProcess:
    """A running engine. Made by ``spawn``, in the main thread: the kernel ties the engine to that thread."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
        self._exit = asyncio.create_task(self._close_after_exit())

    @classmethod
    async def spawn(cls, module: str = ENGINE_MODULE) -> Self:
        """Start ``module`` in a process that imports from the same places as this one.

        Raises:
            OSError: no process or socket could be made.
        """
        ours, theirs = socket.socketpair()
        import_path = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
        with theirs, contextlib.ExitStack() as on_failure:
            on_failure.callback(ours.close)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-c", _BOOTSTRAP, module, str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={**THREAD_ENVIRONMENT, **inherited_environment(), "PYTHONPATH": import_path},
            )
            on_failure.pop_all()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def send(self, message: ToEngine) -> None:
        """Queue one frame; without effect when the engine is gone (``messages`` then ends)."""
        if not self._writer.is_closing():
            body = self._encoder.encode(message)
            self._writer.write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)

    async def messages(self) -> AsyncIterator[FromEngine]:
        """What the engine says, in order; ends when it is gone or talks nonsense."""
        while True:
            try:
                length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
                if length > MAX_MESSAGE_BYTES:
                    logger.error("the engine sent a frame of %d bytes; it is broken", length)
                    return
                body = await self._reader.readexactly(length)
                message = self._decoder.decode(body)
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            except msgspec.DecodeError as error:
                logger.error("the engine sent a message that can't be read: %s", error)
                return
            yield message

    async def stop(self, grace: float = _EXIT_GRACE) -> str:
        """Close the socket, wait ``grace`` seconds, kill what is left.

        Returns:
            How the process ended, for the log.
        """
        self._writer.close()
        try:
            await asyncio.wait_for(asyncio.shield(self._exit), grace)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._exit
        return _describe_exit(await self._process.wait())

    async def _close_after_exit(self) -> None:
        await self._process.wait()
        # The engine's last words are still read; a child of it that holds the socket is not waited for.
        asyncio.get_running_loop().call_later(_EXIT_GRACE, self._writer.transport.abort)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    hint = " (was memory short?)" if -code == signal.SIGKILL else ""
    return f"was killed by signal {name}{hint}"

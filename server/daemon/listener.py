"""The server's socket: bound before anything slow starts, open for connections only later."""

from __future__ import annotations

import errno
import socket
import sys
from ipaddress import ip_address
from pathlib import Path

BACKLOG = 2048


class ListenError(Exception):
    """The address can't be had; the message is for the user."""


def bind(host: str, port: int) -> socket.socket:
    """Take the address without accepting connections; IPv4 where ``host`` has both.

    Raises:
        ListenError: no such host, or the address is in use or not allowed.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ListenError(f"can't listen on {host}: no such address ({error})") from error
    family, kind, protocol, _, address = min(addresses, key=lambda found: found[0] != socket.AF_INET)
    sock = socket.socket(family, kind, protocol)
    try:
        # Without it the port stays taken for a minute after a restart.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _refusal(host, port, error) from error
    return sock


def bind_unix(path: str) -> socket.socket:
    """Take a Unix socket's path, also one that a server which is gone has left behind.

    Raises:
        ListenError: the path is taken or can't be made.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_left_behind(path):
            Path(path).unlink()
        sock.bind(path)
    except OSError as error:
        sock.close()
        taken = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise ListenError(f"can't listen on the Unix socket {path}: {taken}") from error
    return sock


def _is_left_behind(path: str) -> bool:
    """A socket that nobody answers; anything else at that path is not ours to remove."""
    if not Path(path).is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def is_loopback(sock: socket.socket) -> bool:
    """Whether only this machine can reach a bound socket."""
    return sock.family == socket.AF_UNIX or ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def listen(sock: socket.socket, write_timeout: float) -> None:
    """Accept connections; the system ends those whose client takes nothing for ``write_timeout`` s.

    What is sent fills megabytes of the system's buffers before a write has to wait, so a client that
    does not read is noticed there first (TCP_USER_TIMEOUT, tcp(7); Linux only). Connections inherit it.

    Raises:
        ListenError: another process that had bound the address too was first.
    """
    try:
        if sys.platform == "linux" and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(int(1000 * write_timeout), 1))
        sock.listen(BACKLOG)
    except OSError as error:
        host, port = sock.getsockname()[:2]
        raise _refusal(host, port, error) from error


def url(host: str, sock: socket.socket, *, tls: bool = False) -> str:
    """Where clients find the server, with the port that was really taken."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    shown = f"[{host}]" if ":" in host else host
    return f"http{'s' if tls else ''}://{shown}:{sock.getsockname()[1]}"


def _refusal(host: str, port: int, error: OSError) -> ListenError:
    if error.errno == errno.EADDRINUSE:
        return ListenError(f"port {port} on {host} is in use; choose another with --port")
    return ListenError(f"can't listen on {host} port {port}: {error.strerror}")

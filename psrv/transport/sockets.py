"""Sockets for the connections between servers."""

from __future__ import annotations

import contextlib
import socket

PEER_SILENT_S = 10
"""After this long without a sign of the other host's kernel a connection is gone."""
_OPTIONS = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PEER_SILENT_S // 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PEER_SILENT_S // 2),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * PEER_SILENT_S),
]
_NOT_PACED = (b"cubic", b"reno")
_LONGEST_NAME = 16


def connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """Open a connection; the time limit also applies to its calls.

    Raises:
        OSError: Nobody answers.
    """
    failed = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        connection = socket.socket(family, kind, protocol)
        try:
            tune(connection)
            connection.settimeout(timeout_s)
            connection.connect(address)
        except OSError as error:
            connection.close()
            failed = error
        else:
            return connection
    raise failed


def listen(host: str) -> socket.socket:
    """Bind any port of the one address that a name resolves to.

    Raises:
        OSError: The address is none of this host's.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        tune(listener)
        listener.bind(address)
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def tune(sock: socket.socket) -> None:
    """Tune a socket for large frames within a cluster, before it is connected.

    An accepted connection inherits the options of its listener. Buffer sizes are left to the
    kernel, which makes them as large as the path needs (tcp_wmem, tcp_rmem: MiB), while a size set
    here would be capped at net.core.wmem_max, 208 KiB by default.
    """
    for option in _OPTIONS:
        sock.setsockopt(*option)
    _do_not_pace(sock)


def _do_not_pace(sock: socket.socket) -> None:
    """Avoid BBR congestion control, where it is the host's default.

    BBR is made for the internet. It paces packets by a timer, which within a cluster takes longer
    than sending them (docs/benchmarks.md). A connection that has once used it stays paced.
    """
    option = socket.IPPROTO_TCP, socket.TCP_CONGESTION
    if not sock.getsockopt(*option, _LONGEST_NAME).startswith(b"bbr"):
        return
    for name in _NOT_PACED:
        with contextlib.suppress(OSError):  # not built in, or not allowed
            sock.setsockopt(*option, name)
            return

"""The sockets of connections between servers."""

from __future__ import annotations

import contextlib
import socket

PEER_SILENT_S = 10
"""After so long without a sign of the other host's kernel a connection is gone."""
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
    """Open a connection, whose calls have this time limit, too.

    Raises:
        OSError: nobody is there.
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
    """Bind any port of the one address that a name leads to.

    Raises:
        OSError: it is none of this host's.
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
    """Set what a connection for large frames within a cluster needs, before there is one.

    An accepted connection has it from its listener. Buffers are the kernel's business: it makes
    them as large as the way needs (tcp_wmem, tcp_rmem: MiB), while a size set here would end at
    net.core.wmem_max, 208 KiB by default.
    """
    for option in _OPTIONS:
        sock.setsockopt(*option)
    _do_not_pace(sock)


def _do_not_pace(sock: socket.socket) -> None:
    """Use another congestion control than BBR, where a host has that as its default.

    It is made for the internet, and sends at a pace, by a timer for every few packets, which within
    a cluster takes longer than the sending (docs/benchmarks.md). A connection that has once had it
    is paced for ever.
    """
    option = socket.IPPROTO_TCP, socket.TCP_CONGESTION
    if not sock.getsockopt(*option, _LONGEST_NAME).startswith(b"bbr"):
        return
    for name in _NOT_PACED:
        with contextlib.suppress(OSError):  # not built in, or not for everybody
            sock.setsockopt(*option, name)
            return

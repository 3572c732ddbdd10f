"""How the sockets of connections between servers are set."""

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


def tune(connection: socket.socket) -> None:
    """Set what a connection for large frames within a cluster needs.

    Buffers are the kernel's business: it makes them as large as the way needs (tcp_wmem, tcp_rmem:
    MiB), while a size set here would end at net.core.wmem_max, 208 KiB by default.
    """
    for option in _OPTIONS:
        connection.setsockopt(*option)
    _do_not_pace(connection)


def _do_not_pace(connection: socket.socket) -> None:
    """Use another congestion control than BBR, where a host has that as its default.

    It is made for the internet, and sends at a pace, by a timer for every few packets. Within a
    cluster that takes as long as the sending: bare sockets made 32 updates a second where they make
    50 without it (docs/benchmarks.md).
    """
    option = socket.IPPROTO_TCP, socket.TCP_CONGESTION
    if not connection.getsockopt(*option, _LONGEST_NAME).startswith(b"bbr"):
        return
    for name in _NOT_PACED:
        with contextlib.suppress(OSError):  # not built in, or not for everybody
            connection.setsockopt(*option, name)
            return

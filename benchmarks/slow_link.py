"""A link that is far away: a port that forwards to another, late and at a limited rate.

Netem would delay the packets of the whole machine and needs privileges; this delays one port.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_BLOCK_BYTES = 16 * 1024
_QUEUE_BLOCKS = 1024


@contextmanager
def slow_link(port: int, delay_s: float, bytes_per_s: float) -> Iterator[int]:
    """Forward connections to a port of this machine.

    Args:
        port: Where to.
        delay_s: How much later each byte arrives, in each direction.
        bytes_per_s: How many pass in a second, in each direction.

    Yields:
        The port to connect to.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepting = threading.Thread(
            target=_accept, args=(server, port, delay_s, bytes_per_s), daemon=True
        )
        accepting.start()
        yield server.getsockname()[1]


def _accept(server: socket.socket, port: int, delay_s: float, bytes_per_s: float) -> None:
    while True:
        try:
            near, _ = server.accept()
        except OSError:  # closed: the benchmark is over
            return
        far = socket.create_connection(("127.0.0.1", port))
        for each in (near, far):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, target in ((near, far), (far, near)):
            waiting: queue.Queue[tuple[float, bytes]] = queue.Queue(_QUEUE_BLOCKS)
            for work in (_read, _write):
                end = source if work is _read else target
                threading.Thread(
                    target=work, args=(end, waiting, delay_s, bytes_per_s), daemon=True
                ).start()


def _read(
    source: socket.socket, waiting: queue.Queue[tuple[float, bytes]], delay_s: float,
    bytes_per_s: float,
) -> None:  # fmt: skip
    """Note when each block arrives at the other end: after those before it, and the delay."""
    free_s = 0.0
    while True:
        try:
            block = source.recv(_BLOCK_BYTES)
        except OSError:
            block = b""
        free_s = max(free_s, time.monotonic()) + len(block) / bytes_per_s
        waiting.put((free_s + delay_s, block))
        if not block:
            return


def _write(
    target: socket.socket, waiting: queue.Queue[tuple[float, bytes]], _delay_s: float,
    _bytes_per_s: float,
) -> None:  # fmt: skip
    while True:
        at_s, block = waiting.get()
        time.sleep(max(0.0, at_s - time.monotonic()))
        try:
            if not block:
                target.shutdown(socket.SHUT_WR)
                return
            target.sendall(block)
        except OSError:  # the other end has gone
            return

"""Limits on peers that have not authenticated yet: few at a time, and few log lines about them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable

MAX_UNAUTHENTICATED = 32
"""Connections that may be in their handshake at a time."""
LINES_AT_ONCE, LINE_EVERY_S = 20, 1.0
"""How many refusals are logged in a burst, and how often after that."""


class UnauthenticatedPeers:
    """Connections in their handshake.

    A new one is always accepted: if there are too many, the oldest one of the busiest address is
    closed. So slow or many peers never keep out those that know the secret, which need a moment
    only.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._here: dict[socket.socket, str] = {}
        """Their addresses, the oldest connection first."""

    def add(self, connection: socket.socket, address: str) -> None:
        """Add a connection, and close another one if there are too many."""
        with self._lock:
            if len(self._here) >= MAX_UNAUTHENTICATED:
                busiest = Counter(self._here.values()).most_common(1)[0][0]
                oldest = next(each for each, host in self._here.items() if host == busiest)
                del self._here[oldest]
                with contextlib.suppress(OSError):  # its thread closes it
                    oldest.shutdown(socket.SHUT_RDWR)
            self._here[connection] = address

    def remove(self, connection: socket.socket) -> None:
        """Remove a connection whose handshake has ended, well or not."""
        with self._lock:
            self._here.pop(connection, None)


class Refusals:
    """Logs refusals at a limited rate, so that nobody can fill the disk.

    Args:
        log: Gets the lines.
        clock: Returns seconds.
    """

    def __init__(
        self, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._left = float(LINES_AT_ONCE)
        self._refilled_at = clock()
        self._omitted = 0

    def say(self, line: str) -> None:
        """Log a line, or only count it; the next line that is logged tells the number."""
        with self._lock:
            now = self._clock()
            self._left += (now - self._refilled_at) / LINE_EVERY_S
            self._left, self._refilled_at = min(self._left, LINES_AT_ONCE), now
            if self._left < 1:
                self._omitted += 1
                return
            self._left -= 1
            more = f" (and {self._omitted} more since the last such line)" if self._omitted else ""
            self._omitted = 0
            self._log(line + more)

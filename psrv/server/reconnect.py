"""A connection between two nodes' servers that reconnects whenever it ends."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from psrv.push.waiting import naps
from psrv.transport.base import DisconnectedError, Purpose, RefusedError
from psrv.transport.tcp import Connection

_DIAL_AGAIN_S, _LONGEST_DIAL_S = 0.05, 1.0
_SAID_AFTER_S = 2.0
"""An outage shorter than this is not logged. Neither are servers that end at the same time, one of
which sees the end of the training first."""


@dataclass(frozen=True)
class Peer:
    """A server on another node, as the connections to it see it."""

    name: str
    """For the log."""
    dial: Callable[[Purpose], Connection]
    log: Callable[[str], None]
    """Gets a line for each change."""
    fail: Callable[[BaseException], None]
    """Gets an error that must end this server."""


class ReconnectingConnection(ABC):
    """A connection that reconnects whenever it ends; a subclass says what it carries."""

    def __init__(self, peer: Peer, label: str, purpose: Purpose) -> None:
        self._peer = peer
        self._name = f"{peer.name}, {label}"
        self._purpose = purpose
        self._said = ""
        self._stopped = threading.Event()
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def run(self) -> None:
        """Keep the connection open, and run `use` on it, until `stop`."""
        naps_s = naps(_DIAL_AGAIN_S, _LONGEST_DIAL_S)
        without_since: float | None = None
        while not self._stopped.is_set():
            opened_at = float("inf")
            try:
                connection = self._open()
                opened_at = time.monotonic()
                self._say("connected")
                self.use(connection)
            except (DisconnectedError, RefusedError) as error:
                now = time.monotonic()
                if now - opened_at >= _SAID_AFTER_S:  # it has lasted, and does not flap
                    naps_s, without_since = naps(_DIAL_AGAIN_S, _LONGEST_DIAL_S), None
                without_since = without_since or now
                long = now - without_since >= _SAID_AFTER_S or isinstance(error, RefusedError)
                if long and not self._stopped.is_set():
                    self._say(error.message)
            finally:
                self._close()
            self._stopped.wait(next(naps_s))

    def stop(self) -> None:
        """End `run` soon."""
        self._stopped.set()
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def _open(self) -> Connection:
        connection = self._peer.dial(self._purpose)
        with self._lock:
            self._connection = connection
        if self._stopped.is_set():
            raise DisconnectedError("this server has closed the connection")
        return connection

    def _close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _say(self, what: str) -> None:
        """Log a line unless it repeats the last one."""
        if what != self._said:
            self._said = what
            self._peer.log(f"{self._name}: {what}")

    @abstractmethod
    def use(self, connection: Connection) -> None:
        """Work on an open connection until DisconnectedError, or until stopped."""

"""A connection of one node's server to another's that is opened again whenever it ends."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from psrv.transport.base import Connection, DisconnectedError, Purpose, RefusedError

_DIAL_AGAIN_S, _LONGEST_DIAL_S = 0.05, 1.0
_SAID_AFTER_S = 2.0
"""A connection that is back sooner is not spoken of; nor are those of servers that end together,
of which one sees the end of the training first."""

Dial = Callable[[Purpose, int], Connection]
"""Opens a connection: what for, and which stripe."""


class Lasting(ABC):
    """A connection that is opened again whenever it ends; a subclass says what goes over it."""

    def __init__(
        self, name: str, dial: Dial, purpose: Purpose, stripe: int, log: Callable[[str], None]
    ) -> None:
        self._name = name
        self._dial = dial
        self._purpose = purpose
        self._stripe = stripe
        self._log = log
        self._said = ""
        self._stopped = threading.Event()
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def run(self) -> None:
        """Do so until `stop`."""
        nap_s = _DIAL_AGAIN_S
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
                if now - opened_at >= _SAID_AFTER_S:  # not one that comes and goes
                    nap_s, without_since = _DIAL_AGAIN_S, None
                without_since = without_since or now
                long = now - without_since >= _SAID_AFTER_S or isinstance(error, RefusedError)
                if long and not self._stopped.is_set():
                    self._say(error.message)
            finally:
                self._close()
            self._stopped.wait(nap_s)
            nap_s = min(2 * nap_s, _LONGEST_DIAL_S)

    def stop(self) -> None:
        """End it soon."""
        self._stopped.set()
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def _open(self) -> Connection:
        connection = self._dial(self._purpose, self._stripe)
        with self._lock:
            self._connection = connection
        if self._stopped.is_set():
            raise DisconnectedError("this server ends the connection")
        return connection

    def _close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def _say(self, what: str) -> None:
        """Log what is new."""
        if what != self._said:
            self._said = what
            self._log(f"{self._name}: {what}")

    @abstractmethod
    def use(self, connection: Connection) -> None:
        """Do the work until DisconnectedError, or until stopped."""

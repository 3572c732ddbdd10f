"""What strangers may take of the server: any user of this machine can reach its port.

A request has some seconds to come; of the connections that wait for one only the newest stay, and
there is a limit on all. Nothing is printed for any of them.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 256
MOST_WAITING = 64
"""Of the connections, those whose request has not come as a whole."""
BACKLOG = 32
"""So many connections are accepted at once, before any of them can be closed again."""
REQUEST_S = 10.0
"""How long a request may take to come as a whole."""


class Connection(H11Protocol):
    """One connection of a server.

    Args:
        waiting: the server's connections whose request has not come, the oldest first.
        how: as of its base class.
    """

    def __init__(self, waiting: dict[Connection, None], **how: Any) -> None:
        super().__init__(**how)
        self._waiting = waiting
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, perhaps in place of an older one."""
        super().connection_made(transport)
        if len(self.connections) > MOST_CONNECTIONS:
            return transport.abort()
        self._await_request()
        while len(self._waiting) > MOST_WAITING:
            next(iter(self._waiting)).give_up()
        return None

    def data_received(self, data: bytes) -> None:
        """Take some bytes of a request."""
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._has_come()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Leave the connection to another protocol."""
        self._has_come()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._has_come()
        super().connection_lost(exc)

    def give_up(self) -> None:
        """Close the connection: its request does not come."""
        self._has_come()
        self.transport.abort()

    def _await_request(self) -> None:
        self._has_come()
        self._waiting[self] = None
        self._late = self.loop.call_later(REQUEST_S, self.give_up)

    def _has_come(self) -> None:
        self._waiting.pop(self, None)
        if self._late is not None:
            self._late.cancel()


def be_silent(loop: asyncio.AbstractEventLoop) -> None:
    """Print nothing of what goes wrong with connections, unless DLCTL_DEBUG is set."""
    if not os.environ.get("DLCTL_DEBUG"):
        loop.set_exception_handler(lambda loop, context: None)  # noqa: ARG005

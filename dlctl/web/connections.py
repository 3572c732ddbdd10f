"""Serve HTTP to all that can reach a port: no client can keep others waiting.

A request's head has some seconds to come, and its body to go on. Of the connections that wait for
one only the newest stay, and there is a limit on all. Nothing is printed for any of them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dlctl.errors import RecordError

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from starlette.websockets import WebSocket

MOST_CONNECTIONS = 256
MOST_WAITING = 64
"""The most connections whose request has not come."""
BACKLOG = 32
"""So many connections are accepted at once, before any of them can be closed again."""
_QUEUE = 1024
"""So many wait for that in the kernel; it drops what comes then, and a client tries after 1 s."""
_LINGER_S = 1.0
"""For how long the rest of a body that was refused is thrown away, before the connection ends."""
REQUEST_S = 10.0
"""The time for a request's head to come, and for a pause of its body."""


class Listener(socket.socket):
    """Accepts connections; of those whose TLS has not begun only the newest stay."""

    def __init__(self, *how: Any) -> None:
        super().__init__(*how)
        self.begun: dict[int, weakref.ref[socket.socket]] = {}
        """By their file's number, the oldest first."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, perhaps in place of an older one."""
        connection, address = super().accept()
        self.begun.pop(connection.fileno(), None)
        self.begun[connection.fileno()] = weakref.ref(connection)
        while len(self.begun) > MOST_WAITING:
            oldest = self.begun.pop(next(iter(self.begun)))()
            if oldest is not None:
                with suppress(OSError):  # it has ended
                    oldest.shutdown(socket.SHUT_RDWR)
        return connection, address


class Connection(H11Protocol):
    """One connection of a server.

    Args:
        waiting: the server's connections whose request has not come, the oldest first.
        begun: those of its listener, which this one leaves.
        how: as of its base class.
    """

    def __init__(
        self, waiting: dict[Connection, None], begun: dict[int, Any], **how: Any
    ) -> None:  # fmt: skip
        super().__init__(**how)
        self._waiting, self._begun = waiting, begun
        self._late: asyncio.TimerHandle | None = None
        self._is_another = False
        """Whether another protocol has the connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, perhaps in place of an older one."""
        super().connection_made(transport)
        if (mine := transport.get_extra_info("socket")) is not None:
            self._begun.pop(mine.fileno(), None)
        if len(self.connections) > MOST_CONNECTIONS:
            return transport.abort()
        self._await_request()
        while len(self._waiting) > MOST_WAITING:
            next(iter(self._waiting)).give_up()
        return None

    def data_received(self, data: bytes) -> None:
        """Take some bytes of a request."""
        super().data_received(data)
        if self._is_another or (self.cycle is not None and self.cycle.response_complete):
            return
        if self.conn.their_state is h11.SEND_BODY:  # it may be large: it only has to go on
            self._has_come()
            self._late = self.loop.call_later(REQUEST_S, self.give_up)
        elif self.conn.their_state is not h11.IDLE:
            self._has_come()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Leave the connection to another protocol."""
        self._has_come()
        self._is_another = True
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        is_unread = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        if is_unread:  # the client reads why, and then sends on in vain
            self._has_come()
            self._late = self.loop.call_later(_LINGER_S, self.give_up)
        elif not self.transport.is_closing():
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


class Server(uvicorn.Server):
    """Ends the streams first: they would keep the server from ending."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve; print nothing of what goes wrong with connections."""
        if not os.environ.get("DLCTL_DEBUG"):
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_QUEUE)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the server."""
        self._end_streams()
        await super().shutdown(sockets)


def server_of(
    app: ASGIApp, listener: socket.socket, end_streams: Callable[[], None], *, leave_s: int,
    most_message_bytes: int, **more: Any,
) -> Server:  # fmt: skip
    """Return a server, which `run` starts.

    Args:
        end_streams: Called when it is to end.
        leave_s: How long open requests have then.
        most_message_bytes: Of a WebSocket.
        more: For `uvicorn.Config`.
    """
    config = uvicorn.Config(
        app, log_level="critical", lifespan="off", ws="websockets-sansio",
        timeout_graceful_shutdown=leave_s, server_header=False, backlog=BACKLOG,
        ws_max_size=most_message_bytes,
        http=partial(  # type: ignore[arg-type]
            Connection, waiting={}, begun=getattr(listener, "begun", {})
        ),
        **more,
    )  # fmt: skip
    config.load()
    server = Server(config, end_streams)
    run = server.run
    server.run = lambda sockets=None: run(sockets or [listener])  # type: ignore[method-assign]
    return server


def listen(port: int, address: str = "127.0.0.1") -> socket.socket:
    """Listen on a port; 0 for any free one.

    Raises:
        RecordError: it is not free.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # asyncio sends at once only where a socket names its protocol; else each answer takes 40 ms.
    listener = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(BACKLOG)  # a browser that comes before the server waits
    except OSError as error:
        listener.close()
        raise RecordError(
            f"port {port} of {address} can't be used: {error.strerror}",
            hint="name another one; with --port 0 dlctl takes a free one",
        ) from error
    return listener


async def until_left(websocket: WebSocket, sends: Coroutine[None, None, None]) -> None:
    """Run what sends to a WebSocket, until it is done or the client has left."""
    tasks = [asyncio.create_task(work) for work in (sends, _left(websocket))]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _left(websocket: WebSocket) -> None:
    """Return when the client has closed the WebSocket."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass

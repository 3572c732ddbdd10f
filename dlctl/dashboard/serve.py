"""Run the server of the dashboard on this machine.

Any user of this machine can reach its port. So a request has some seconds to come; of the
connections that wait for one only the newest stay, and there is a limit on all. Nothing is printed
for any of them.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from dlctl.dashboard.app import MOST_BYTES, make_app
from dlctl.dashboard.browser import opened
from dlctl.dashboard.guard import make_token
from dlctl.errors import RecordError

if TYPE_CHECKING:
    from dlctl.dashboard.live import LiveFeed

_LEAVE_S = 1
"""How long open connections have to end."""
MOST_CONNECTIONS = 256
MOST_WAITING = 64
"""Of the connections, those whose request has not come as a whole."""
BACKLOG = 32
"""So many connections are accepted at once, before any of them can be closed again."""
REQUEST_S = 10.0
"""How long a request may take to come as a whole."""


class _Connection(H11Protocol):
    """One connection of a server.

    Args:
        waiting: the server's connections whose request has not come, the oldest first.
        how: as of its base class.
    """

    def __init__(self, waiting: dict[_Connection, None], **how: Any) -> None:
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


class _Server(uvicorn.Server):
    """Ends the streams of changes and logs first: they would keep the server from ending."""

    def __init__(self, config: uvicorn.Config, feed: LiveFeed) -> None:
        super().__init__(config)
        self._feed = feed

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve; print nothing of what goes wrong with connections."""
        if not os.environ.get("DLCTL_DEBUG"):
            asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the server."""
        self._feed.versions.close()
        await super().shutdown(sockets)


@contextmanager
def prepared(feed: LiveFeed, port: int = 0, page: str = "") -> Iterator[tuple[str, uvicorn.Server]]:
    """Yield the URL, which holds a token, and the server, which `run` starts.

    Args:
        port: 0 for any free one.
        page: of the dashboard, such as `/training/digits-3k9f`.

    Raises:
        RecordError: the port is not free.
    """
    token = make_token()
    with _listen(port) as listener:
        port = listener.getsockname()[1]
        app = make_app(feed, token=token, port=port)
        config = uvicorn.Config(
            app, log_level="critical", lifespan="off", ws="websockets-sansio",
            timeout_graceful_shutdown=_LEAVE_S, server_header=False, backlog=BACKLOG,
            ws_max_size=MOST_BYTES,
            http=partial(_Connection, waiting={}),  # type: ignore[arg-type]
        )  # fmt: skip
        config.load()
        server = _Server(config, feed)
        run = server.run
        server.run = lambda sockets=None: run(sockets or [listener])  # type: ignore[method-assign]
        yield f"http://127.0.0.1:{port}/#{page or '/'}?token={token}", server


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(BACKLOG)  # a browser that comes before the server waits
    except OSError as error:
        listener.close()
        raise RecordError(
            f"port {port} of 127.0.0.1 can't be used: {error.strerror}",
            hint="leave --port out: dlctl takes a free one",
        ) from error
    return listener


def serve(
    feed: LiveFeed, port: int, page: str, *, open_browser: bool, tell: Callable[[str], None],
    warn: Callable[[str], None],
) -> None:  # fmt: skip
    """Serve the page until Ctrl-C.

    Args:
        tell: called with the URL as soon as the server answers there.
        warn: called with a sentence if the browser can't be opened.
    """
    with prepared(feed, port, page) as (url, server):
        tell(url)
        with opened(url) if open_browser else nullcontext("") as problem:
            if problem:
                warn(problem)
            with suppress(KeyboardInterrupt):
                server.run()

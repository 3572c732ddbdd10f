"""Run the server of the dashboard on this machine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING

import uvicorn

from dlctl.dashboard.app import MOST_BYTES, make_app
from dlctl.dashboard.browser import opened
from dlctl.dashboard.guard import make_token
from dlctl.dashboard.limits import BACKLOG, Connection, be_silent
from dlctl.errors import RecordError

if TYPE_CHECKING:
    from dlctl.dashboard.feed import Feed

_LEAVE_S = 1
"""How long open connections have to end."""


class _Server(uvicorn.Server):
    """Ends the streams of changes and logs first: they would keep the server from ending."""

    def __init__(self, config: uvicorn.Config, feed: Feed) -> None:
        super().__init__(config)
        self._feed = feed

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve."""
        be_silent(asyncio.get_running_loop())
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the server."""
        self._feed.versions.close()
        await super().shutdown(sockets)


@contextmanager
def prepared(feed: Feed, port: int = 0, page: str = "") -> Iterator[tuple[str, uvicorn.Server]]:
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
            http=partial(Connection, waiting={}),  # type: ignore[arg-type]
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
    feed: Feed, port: int, page: str, *, open_browser: bool, tell: Callable[[str], None],
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

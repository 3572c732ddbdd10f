"""Run the server of the dashboard on this machine; any user of it can reach the port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from dlctl.dashboard.app import MOST_BYTES, make_app
from dlctl.dashboard.browser import opened
from dlctl.dashboard.guard import make_token
from dlctl.web.connections import Server, listen, server_of

if TYPE_CHECKING:
    from dlctl.dashboard.live import LiveFeed

_LEAVE_S = 1
"""How long open connections have to end."""


@contextmanager
def prepared(feed: LiveFeed, port: int = 0, page: str = "") -> Iterator[tuple[str, Server]]:
    """Yield the URL, which holds a token, and the server, which `run` starts.

    Args:
        port: 0 for any free one.
        page: of the dashboard, such as `/training/digits-3k9f`.

    Raises:
        RecordError: the port is not free.
    """
    token = make_token()
    with listen(port) as listener:
        port = listener.getsockname()[1]
        app = make_app(feed, token=token, port=port)
        server = server_of(app, listener, feed.versions.close, leave_s=_LEAVE_S,
                           most_message_bytes=MOST_BYTES)  # fmt: skip
        yield f"http://127.0.0.1:{port}/#{page or '/'}?token={token}", server


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

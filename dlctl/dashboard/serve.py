"""Run the server of the dashboard on this machine; any user of it can reach the port.

The user's browser opens the page by a private file: others can read a browser's command.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.dashboard.app import MOST_BYTES, make_app
from dlctl.dashboard.guard import make_token
from dlctl.web.connections import Server, listen, server_of

if TYPE_CHECKING:
    from dlctl.dashboard.live import LiveFeed

_LEAVE_S = 1
"""How long open connections have to end."""
_ASK_S = 5.0
_SNAPS = Path("/snap")


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


# The browser -------------------------------------------------------------------------------------


@contextmanager
def opened(url: str) -> Iterator[str]:
    """Open a URL in the default browser, where there is a display.

    The file lasts as long as the `with` block. Yield a sentence for the user if there is no file
    that the browser can read.
    """
    if not _has_display():
        yield ""
        return
    snap = _snap_of_browser()
    folder = Path.home() / "snap" / snap / "common" if snap else None
    if folder is not None and not os.access(folder, os.W_OK):
        yield f"the snap {snap} can't read dlctl's files: open the address above"
        return
    with tempfile.TemporaryDirectory(prefix="dlctl-", dir=folder) as private:
        page = Path(private) / "dashboard.html"
        page.touch(mode=0o600)
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={url}">\n')
        webbrowser.open(page.as_uri())
        yield ""


def _has_display() -> bool:
    if sys.platform == "darwin":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _snap_of_browser() -> str:
    """Return the snap that the default browser is, or nothing.

    A snap has a /tmp of its own, and reads no hidden folder of the user's home.
    """
    name = _default_browser().removesuffix(".desktop")
    snap, separator, _ = name.partition("_")
    if separator and (_SNAPS / snap).is_dir():
        return snap
    program = shutil.which(name) or ""
    path = Path(os.path.realpath(program)) if program else Path()
    if Path(program).is_relative_to(_SNAPS) or path.is_relative_to(_SNAPS):
        return name
    return name if path.name == "snap" else ""  # /snap/bin/firefox leads to /usr/bin/snap


def _default_browser() -> str:
    """Return the desktop file of the default browser, such as `firefox_firefox.desktop`."""
    if os.environ.get("BROWSER"):
        return Path(os.environ["BROWSER"].split(os.pathsep)[0].split(" ")[0]).name
    try:
        answer = subprocess.run(
            ["xdg-settings", "get", "default-web-browser"],  # noqa: S607 - the user's own
            capture_output=True, text=True, timeout=_ASK_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip()

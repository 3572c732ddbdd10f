"""Views of trainings that stay open: `dlctl watch` on a terminal, `dlctl dashboard` as a page."""

from __future__ import annotations

import csv
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COLUMNS, ROWS = 150, 40
_ESCAPES = re.compile(r"\033\[[0-9;?]*[A-Za-z]")


class WatchedTerminal:
    """`dlctl watch` on a terminal of its own; all that it draws is kept."""

    def __init__(self, dlctl: Any, *ids: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dlctl", "watch", *ids],
            env=dlctl.env | {"TERM": "xterm-256color"}, cwd=dlctl.cwd,
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self._drawn = bytearray()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            while piece := os.read(self._master, 65536):
                self._drawn.extend(piece)
        except OSError:  # nobody holds the other end any more
            pass

    @property
    def drawn(self) -> str:
        """Return all text that was ever drawn, without colours and places."""
        return _ESCAPES.sub("", bytes(self._drawn).decode(errors="replace"))

    def wait_for(self, text: str, timeout_s: float = 90) -> None:
        """Wait until a text was drawn."""
        end = time.monotonic() + timeout_s
        while text not in self.drawn:
            assert time.monotonic() < end, f"{text!r} was not drawn: {self.drawn[-3000:]}"
            time.sleep(0.1)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        os.close(self._master)


@contextmanager
def watched(dlctl: Any, *ids: str) -> Iterator[WatchedTerminal]:
    """Watch trainings until the end of the `with` block."""
    terminal = WatchedTerminal(dlctl, *ids)
    try:
        yield terminal
    finally:
        terminal.close()


@contextmanager
def dashboard_url(dlctl: Any, *ids: str, **how: Any) -> Iterator[str]:
    """Yield the address of a real `dlctl dashboard`."""
    process = dlctl.start("dashboard", *ids, "--no-browser", **how)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        errors = process.communicate(timeout=60)[1]
    assert "Traceback" not in errors


_WOULD_SAVE = """async (button) => {
  const [make, click] = [URL.createObjectURL, HTMLAnchorElement.prototype.click];
  let saved = null;
  URL.createObjectURL = (blob) => { saved = blob; return make.call(URL, blob); };
  HTMLAnchorElement.prototype.click = () => {};
  try {
    button.click();
  } finally {
    URL.createObjectURL = make;
    HTMLAnchorElement.prototype.click = click;
  }
  return saved.text();
}"""


def page_rows(page: Any) -> list[dict[str, str]]:
    """Return the numbers of all charts of a page, as its button CSV saves them.

    The browser downloads nothing: under load Chromium has lost a download now and then.
    """
    button = page.locator(".toolbar").get_by_role("button", name="CSV", exact=True)
    return list(csv.DictReader(io.StringIO(button.evaluate(_WOULD_SAVE))))


def steps_of(rows: list[dict[str, str]], metric: str = "loss", curve: str = "train") -> list[float]:
    """Return the steps at which a curve of a page has a value."""
    return [float(r["x"]) for r in rows if (r["metric"], r["curve"]) == (metric, curve)]


def picture_of(page: Any, name: str) -> None:
    """Keep a picture of a page where `DLCTL_TEST_PICTURES` says, for people who look at it."""
    if folder := os.environ.get("DLCTL_TEST_PICTURES"):
        page.screenshot(path=Path(folder) / f"page-{name}.png", full_page=True)

"""The terminal: an alternate screen of which only changed lines are sent, and single keys."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dlctl.terminal.text import Line

_ENTER, _LEAVE = "\033[?1049h\033[?25l\033[?7l", "\033[?7h\033[?25h\033[?1049l"
_REST_S = 0.1
"""How late the rest of an arrow key may come."""
_ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}


class Screen:
    """Draws frames on a terminal."""

    def __init__(self, colours: bool) -> None:
        self._colours = colours
        self._shown: list[str] = []
        self._size = (0, 0)

    @property
    def size(self) -> tuple[int, int]:
        """Return columns and rows."""
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
        return max(20, columns), max(5, rows)

    def show(self, lines: Sequence[Line]) -> None:
        """Send the lines that differ from what is on the screen."""
        rendered = [line.render(self._colours) for line in lines]
        parts = []
        if self._size != self.size:
            self._size, self._shown = self.size, []
            parts.append("\033[2J")
        for row, text in enumerate(rendered):
            if row >= len(self._shown) or self._shown[row] != text:
                # Behind the last column, the cursor stays on it: nothing is left to erase.
                rest = "\033[K" if lines[row].width < self._size[0] else ""
                parts.append(f"\033[{row + 1};1H{text}{rest}")
        self._shown = rendered
        if parts:
            sys.stdout.write("".join(parts))
            sys.stdout.flush()


@contextmanager
def full_screen(colours: bool) -> Iterator[Screen]:
    """Take the whole terminal; at the end it is as it was before."""
    before = termios.tcgetattr(sys.stdin.fileno()) if sys.stdin.isatty() else None
    ended = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        if before is not None:
            tty.setcbreak(sys.stdin.fileno())
        sys.stdout.write(_ENTER)
        yield Screen(colours)
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        if before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, before)
        for number, handler in ended.items():
            signal.signal(number, handler)


def _leave(number: int, _: object) -> None:
    """End in order: the terminal is restored on the way."""
    raise SystemExit(128 + number)


def key(timeout_s: float) -> str:
    """Return the key that was pressed within a time, such as `q` or `left`; "" for none."""
    descriptor = sys.stdin.fileno()
    if not select.select([descriptor], [], [], timeout_s)[0]:
        return ""
    pressed = os.read(descriptor, 32).decode(errors="replace")
    if pressed == "\033" and select.select([descriptor], [], [], _REST_S)[0]:
        pressed += os.read(descriptor, 32).decode(errors="replace")  # a slow line
    if pressed.startswith(("\033[", "\033O")) and len(pressed) >= 3:
        return _ARROWS.get(pressed[2], "")
    return pressed[:1]

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

from dlctl.terminal.text import Line, width_of

_ALTERNATE, _PREPARE, _LEAVE = "\033[?1049h", "\033[?25l\033[?7l", "\033[?7h\033[?25h\033[?1049l"
_REST_S = 0.1
"""The time in which the rest of an arrow key may come."""
_ARROWS = {"A": "up", "B": "down", "C": "right", "D": "left"}


class Screen:
    """Draws frames on a terminal, and reads keys from it."""

    def __init__(self, colours: bool) -> None:
        self._colours = colours
        self._shown: list[str] = []
        self._size = (0, 0)
        self._modes = termios.tcgetattr(sys.stdin.fileno()) if sys.stdin.isatty() else None
        self._entered = False
        self._signals: list[int] = []
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        self.is_lost = True
        """Whether what was drawn is not there any more."""

    @property
    def size(self) -> tuple[int, int]:
        """Return columns and rows."""
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
        return max(20, columns), max(5, rows)

    def show(self, lines: Sequence[Line]) -> None:
        """Send the lines that differ from what is on the screen."""
        if not self._entered:  # in the background: the terminal is another program's
            return
        rendered = [line.render(self._colours) for line in lines]
        parts = []
        if self._size != self.size or self.is_lost:
            self._size, self._shown, self.is_lost = self.size, [], False
            parts.append("\033[2J")
        for row, text in enumerate(rendered):
            if row >= len(self._shown) or self._shown[row] != text:
                # Behind the last column, the cursor stays on it: nothing is left to erase.
                width = width_of(lines[row].render(False))
                rest = "\033[K" if width < self._size[0] else ""
                parts.append(f"\033[{row + 1};1H{text}{rest}")
        self._shown = rendered
        if parts:
            sys.stdout.write("".join(parts))
            sys.stdout.flush()

    def key(self, timeout_s: float) -> str:
        """Return the key that was pressed within a time, such as `q` or `left`; "" for none.

        A signal ends the wait: after one, the terminal may be lost, or have another size.
        """
        if not self._entered:  # no signal tells that the shell's `fg` brings it to the foreground
            self.enter()
        descriptor = sys.stdin.fileno()
        # In the background, the keys are another program's.
        sources = [descriptor, self._woken] if self._entered else [self._woken]
        ready = select.select(sources, [], [], timeout_s)[0]
        if self._woken in ready:
            os.read(self._woken, 1024)
            self._heed()
        if descriptor not in ready:
            return ""
        pressed = os.read(descriptor, 32).decode(errors="replace")
        if pressed == "\033" and select.select([descriptor], [], [], _REST_S)[0]:
            pressed += os.read(descriptor, 32).decode(errors="replace")  # a slow line
        if pressed.startswith(("\033[", "\033O")) and len(pressed) >= 3:
            return _ARROWS.get(pressed[2], "")
        return pressed[:1]

    def enter(self) -> None:
        """Take the whole terminal, unless another program is in its foreground."""
        if self._modes is not None:
            if not _is_in_foreground():
                return
            tty.setcbreak(sys.stdin.fileno())
        sys.stdout.write(_PREPARE if self._entered else _ALTERNATE + _PREPARE)
        sys.stdout.flush()
        self._entered = self.is_lost = True

    def leave(self) -> None:
        """Make the terminal what it was before; idempotent."""
        if not self._entered:
            return
        self._entered = False
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        if self._modes is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._modes)

    def _heed(self) -> None:
        """Do what signals ask; a handler only notes them, as it may interrupt a write."""
        signals, self._signals = self._signals, []
        if signal.SIGTSTP in signals:
            self._stop()
        elif signal.SIGCONT in signals:
            self.enter()

    def _stop(self) -> None:
        """Leave the terminal and stop, as Ctrl-Z asks; the shell's `fg` continues here."""
        self.leave()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)

    def _note(self, number: int, _: object) -> None:
        self._signals.append(number)

    @contextmanager
    def heeding_signals(self) -> Iterator[None]:
        """End in order, stop and continue with the terminal as it belongs, and see a new size."""
        handlers = {
            signal.SIGTERM: _end, signal.SIGHUP: _end, signal.SIGTSTP: self._note,
            signal.SIGCONT: self._note, signal.SIGWINCH: self._note,
        }  # fmt: skip
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        wakes = signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakes)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._woken)
            os.close(self._wakes)


@contextmanager
def full_screen(colours: bool) -> Iterator[Screen]:
    """Take the whole terminal; at the end it is as it was before."""
    screen = Screen(colours)
    with screen.heeding_signals():
        try:
            screen.enter()
            yield screen
        finally:
            screen.leave()


def _is_in_foreground() -> bool:
    """Return whether keys come to this program; a terminal that controls nobody has no shell."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:
        return True


def _end(number: int, _: object) -> None:
    """End in order: the terminal is restored on the way."""
    raise SystemExit(128 + number)

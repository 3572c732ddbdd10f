"""Signals on the node: a handler only sets a flag, the program acts at its next step boundary.

Knows nothing of jobs. USR2 asks to save and stop (NCCL may take USR1).
"""

from __future__ import annotations

import atexit
import signal
import types
from typing import Any


class HaltFlag:
    """A flag that signals set: true once one of `numbers` has arrived."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers or (int(signal.SIGUSR2),)
        self.received: list[int] = []
        """The signals that have arrived, in order."""
        self._before: dict[int, Any] = {}

    def install(self) -> HaltFlag:
        """Install the handlers and unblock the signals (the launcher may have blocked them)."""
        for number in self.numbers:
            self._before[number] = signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.numbers)
        atexit.register(self._ignore)
        return self

    def _ignore(self) -> None:
        """Ignore late signals: at exit Python would restore the deadly default handlers."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def restore(self) -> None:
        """Restore the previous handlers."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()
        atexit.unregister(self._ignore)

    def _note(self, number: int, _frame: types.FrameType | None) -> None:
        self.received.append(number)

    @property
    def is_set(self) -> bool:
        """Return whether a signal has arrived."""
        return bool(self.received)

    def __bool__(self) -> bool:
        return self.is_set

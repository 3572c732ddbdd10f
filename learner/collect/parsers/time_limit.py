"""Stop work that takes too much processor time, such as a regular expression that explodes.

Python's matching looks for signals now and then, and an exception from a signal's handler ends it:
so no process of its own is needed, which would double the cost of each line.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

LIMIT_S = 0.5
"""Work is stopped after one to two of these, of processor time: an overloaded node is no fault."""


class TooSlow(BaseException):  # noqa: N818 - nothing that catches errors may catch it
    """The work has taken too long."""


class TimeLimit:
    """A limit for each piece of work that is done within it; for the main thread only."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.working = False
        """Whether a piece of work runs now."""
        self.count = 0
        """Counts the pieces; to be raised before each."""
        self._limit_s = limit_s
        self._before = -1

    def __enter__(self) -> TimeLimit:
        self.working = False
        self._before = -1
        self._handler = signal.signal(signal.SIGVTALRM, self._tick)
        signal.setitimer(signal.ITIMER_VIRTUAL, self._limit_s, self._limit_s)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, self._handler)

    def _tick(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if not self.working:
            return
        if self.count == self._before:
            self.working = False
            raise TooSlow
        self._before = self.count

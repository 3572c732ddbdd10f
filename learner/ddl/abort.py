"""What becomes of the other learners when an error ends one of them: they end, too.

Without this they would wait for it for ever: Python's end runs MPI_Finalize, which waits for all.
"""

from __future__ import annotations

import contextlib
import sys
from types import TracebackType

from learner.errors import UserFault, explain
from learner.exchange.base import Group


class EndWithOthers:
    """While installed as sys.excepthook, an error that nobody catches ends all learners."""

    def __init__(self) -> None:
        self.group: Group | None = None
        """Who ends; nobody else before this is known."""
        self._before = sys.excepthook
        self._stderr = sys.stderr
        """torch.distributed's own hook calls ours with another one, to print what it has later."""
        if isinstance(previous := getattr(self._before, "__self__", None), EndWithOthers):
            self._before = previous._before  # of an init() that failed
        sys.excepthook = self._hook

    def remove(self) -> None:
        """Put back what was there before."""
        if getattr(sys.excepthook, "__self__", None) is self:
            sys.excepthook = self._before

    def _hook(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if self.group is None or self.group.size == 1:
            if isinstance(error, UserFault):
                print(error, file=sys.stderr)
            else:
                self._before(kind, error, trace)
            return
        with contextlib.redirect_stderr(self._stderr):
            code = explain(error, self.group.rank)
        self.group.abort(code)

"""Abort: an error that ends one learner ends the others, too.

Otherwise they would wait for it for ever: at Python's exit MPI_Finalize waits for all.
"""

from __future__ import annotations

import contextlib
import sys
from types import TracebackType

from learner.errors import UserFault, explain
from learner.exchange.base import Group


class AbortOnError:
    """While installed as sys.excepthook, aborts all learners on an uncaught error."""

    def __init__(self) -> None:
        self.group: Group | None = None
        """The learners to end; None until they are known."""
        self._before = sys.excepthook
        self._stderr = sys.stderr
        """torch.distributed's own hook calls ours with another stderr, to print its content
        later."""
        if isinstance(previous := getattr(self._before, "__self__", None), AbortOnError):
            self._before = previous._before  # from an init() that failed
        sys.excepthook = self._hook

    def remove(self) -> None:
        """Restore the previous hook."""
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

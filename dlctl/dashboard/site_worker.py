"""One thread for each site, which alone uses the connection there."""

from __future__ import annotations

import os
import queue
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from dlctl.lifecycle import Session

T = TypeVar("T")
_LEAVE_S = 5.0
_AFTER_FAULT_S = 10.0


class SiteWorker:
    """Runs calls that need a site one after another, and looks for news between them.

    Args:
        open_site: opens the connection, at the first use.
        look: looks for news, and returns after how many seconds to look again; None: not before
            the next call.
    """

    def __init__(
        self, name: str, open_site: Callable[[str], Session],
        look: Callable[[SiteWorker], float | None],
    ) -> None:  # fmt: skip
        self.name = name
        self._open, self._look = open_site, look
        self._session: Session | None = None
        self._ends = ExitStack()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"dlctl-{name}", daemon=True)
        self._thread.start()

    @property
    def session(self) -> Session:
        """Return the open session; only for what runs in the worker's thread."""
        if self._session is None:
            opened = self._open(self.name)
            self._ends.callback(opened.close)
            self._session = self._ends.enter_context(opened.staying())
        return self._session

    def call(self, work: Callable[[Session], T]) -> Future[T]:
        """Let the worker run something with the open site."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work(self.session))
            except BaseException as error:  # the caller that waits gets it
                future.set_exception(error)

        if self._closed:
            future.cancel()
        self._calls.put(run)
        return future

    def wake(self) -> None:
        """Look for news now."""
        self._calls.put(lambda: None)

    def close(self) -> None:
        """End the thread and the connection; idempotent."""
        self._closed = True
        self._calls.put(None)
        self._thread.join(_LEAVE_S)

    def _run(self) -> None:
        pause_s: float | None = 0.0
        while not self._closed:
            try:
                call = self._calls.get(timeout=pause_s)
            except queue.Empty:
                call = _nothing
            if call is None:
                break
            call()
            pause_s = self._look_safely()
        self._ends.close()

    def _look_safely(self) -> float | None:
        try:
            return self._look(self)
        except Exception:  # without this thread all pages would wait for ever
            if os.environ.get("DLCTL_DEBUG"):
                traceback.print_exc()
            return _AFTER_FAULT_S


def _nothing(*_: Any) -> None:
    """Stand for a call when none came."""

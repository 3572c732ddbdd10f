"""Open sites that several threads share: each call has a connection of its own, and leaves it open.

A program that asks again and again would log in each time; here it logs in once. A forked process
logs in for itself: two processes that write to one connection would break it.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

from dlctl.lifecycle.session import Session

MOST = 4
"""The number of connections to a site that calls share; sshd allows ten sessions on each."""
_IDLE_S = 60.0
"""After how long an unused connection is closed."""
_PATIENCE_S = 30.0
"""After how long a call opens a further connection: the others may take hours, as a download."""
_of_parents: list[object] = []
"""Connections of the processes that this one was forked from: to close them would tell the site."""


@dataclass
class _Lent(Session):
    """A site whose `close` gives its connection back."""

    pool: Pool | None = None
    follows: bool = False
    process: int = field(default_factory=os.getpid)

    def close(self) -> None:
        """Give the connection back."""
        if self.pool is not None:
            self.pool.give_back(self)


@dataclass
class Pool:
    """The connections of this process.

    Args:
        open_site: Opens the site of a name.
    """

    open_site: Callable[[str], Session]
    most: int = MOST
    _free: dict[str, list[tuple[float, Session]]] = field(default_factory=dict)
    _lent: dict[str, int] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _is_closed: bool = False
    _sweeper: threading.Thread | None = None

    def __post_init__(self) -> None:
        this = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _leave_to_parent(this()))

    def lend(self, name: str, *, follows: bool = False) -> Session:
        """Return an open site; wait for one if all are in use, but not for ever.

        Args:
            follows: It is lent for as long as something is followed, which keeps no call waiting.

        Raises:
            SiteError: there is no such site.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: follows or self._lent.get(name, 0) < self.most, _PATIENCE_S
            )
            self._lent[name] = self._lent.get(name, 0) + (not follows)
            free = self._free.get(name)
            session = free.pop()[1] if free else None
        try:
            session = session or self.open_site(name)
        except BaseException:
            self._return(name, follows)
            raise
        return _Lent(session.site, session.transport, session.scheduler, pool=self,
                     follows=follows)  # fmt: skip

    def give_back(self, session: _Lent) -> None:
        """Keep a connection for the next call."""
        if session.process != os.getpid():
            return _of_parents.append(session)
        plain = Session(session.site, session.transport, session.scheduler)
        with self._changed:
            if keeps := not self._is_closed:
                self._free.setdefault(plain.site.name, []).append((time.monotonic(), plain))
                self._sweep_later()
        self._return(session.site.name, session.follows)
        if not keeps:
            plain.close()
        return None

    def close(self) -> None:
        """Close all connections; those in use once they are given back. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._close_idle(0.0)

    def _return(self, name: str, follows: bool) -> None:
        with self._changed:
            self._lent[name] -= not follows
            self._changed.notify_all()  # who waits may wait for another site

    def _sweep_later(self) -> None:
        if self._sweeper is None:
            self._sweeper = threading.Thread(target=self._sweep, name="dlctl-idle", daemon=True)
            self._sweeper.start()

    def _sweep(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, _IDLE_S / 4)
            self._close_idle(_IDLE_S)
            with self._changed:
                if self._is_closed or not any(self._free.values()):
                    self._sweeper = None
                    return

    def _close_idle(self, idle_s: float) -> None:
        until = time.monotonic() - idle_s
        with self._changed:
            old = [s for free in self._free.values() for at, s in free if at <= until]
            self._free = {name: [each for each in free if each[0] > until]
                          for name, free in self._free.items()}  # fmt: skip
        for session in old:
            session.close()


def _leave_to_parent(pool: Pool | None) -> None:
    if pool is not None:
        _of_parents.append(pool._free)
        pool._free, pool._lent, pool._sweeper = {}, {}, None
        pool._changed = threading.Condition()

"""Repeats what failed for a reason of the infrastructure, with growing and random pauses."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from dlctl.contract.stores import ListedObject
from learner.storage.objects.base import Digests, Moved, ObjectStore, Sink, Unavailable

T = TypeVar("T")
Objects = list[ListedObject]
Notice = Callable[[str, int, float], None]
FIRST_S, LONGEST_S = 0.2, 20.0
"""The first pause and the longest; a server's `Retry-After` may be longer."""


class Patient:
    """A store whose calls are repeated until they work or the time is up.

    Args:
        patience_s: For how long one call is repeated, from its first failure on; it begins anew
            once something has arrived.
        notice: Called with each failure, the number of the next try, and the seconds until then.
        listing_s: After this long a listing ends with what has come.
    """

    def __init__(
        self, store: ObjectStore, patience_s: float, notice: Notice = lambda *_: None,
        listing_s: float = math.inf,
    ) -> None:  # fmt: skip
        self._store, self._patience_s, self._notice = store, patience_s, notice
        self._listing_s = listing_s
        self.is_cut = False
        """A listing has ended before all had come."""

    def list(self) -> Iterator[ListedObject]:
        """Yield every object: a listing that fails in the middle begins again."""
        yield from self.repeat(self._list)

    def _list(self) -> Objects:
        found, until = Objects(), time.monotonic() + self._listing_s
        for item in self._store.list():
            found.append(item)
            if time.monotonic() > until:
                self.is_cut = True
                break
        return found

    def read(self, item: ListedObject, start: int, into: Sink) -> None:
        """Fill a sink with a range of an object; what has arrived does not come again."""
        self.repeat(lambda: self._store.read(item, start, into), lambda: into.done_bytes)

    def write(self, key: str, source: Path, moved: Moved) -> Digests:
        """Write a file to an object."""
        return self.repeat(lambda: self._write(key, source, moved))

    def _write(self, key: str, source: Path, moved: Moved) -> Digests:
        sizes: list[int] = []

        def noted(size_bytes: int) -> None:
            sizes.append(size_bytes)
            moved(size_bytes)

        try:
            return self._store.write(key, source, noted)
        except Unavailable:
            moved(-sum(sizes))
            raise

    def stat(self, key: str) -> ListedObject | None:
        """Return an object without its content."""
        return self.repeat(lambda: self._store.stat(key))

    def repeat(self, action: Callable[[], T], moved: Callable[[], int] = lambda: 0) -> T:
        """Return what an action does once it works; `moved` says what has arrived meanwhile."""
        pause_s, until, tries, before = FIRST_S, None, 1, moved()
        while True:
            try:
                return action()
            except Unavailable as error:
                now = time.monotonic()
                if moved() > before:
                    pause_s, until, tries, before = FIRST_S, None, 1, moved()
                tries += 1
                until = now + self._patience_s if until is None else until
                wait_s = max(pause_s * random.uniform(0.5, 1.5), error.retry_after_s or 0.0)  # noqa: S311
                if now + wait_s > until:
                    raise
                self._notice(error.detail, tries, wait_s)
                time.sleep(wait_s)
                pause_s = min(2 * pause_s, LONGEST_S)

"""Repeats what failed for a reason of the infrastructure, with growing and random pauses."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from learner.storage.objects.base import Object, ObjectStore, Unavailable
from learner.storage.objects.digests import Digests

T = TypeVar("T")
FIRST_S, LONGEST_S = 0.2, 20.0
"""The first pause and the longest; a server's `Retry-After` may be longer."""


class Patient:
    """A store whose calls are repeated until they work or the time is up.

    Args:
        patience_s: For how long one call is repeated, from its first failure on.
        notice: Called with each failure.
    """

    def __init__(
        self, store: ObjectStore, patience_s: float, notice: Callable[[str], None] = lambda _: None
    ) -> None:
        self._store = store
        self._patience_s = patience_s
        self._notice = notice

    def list(self) -> Iterator[Object]:
        """Yield every object: a listing that fails in the middle begins again."""
        yield from self._repeat(lambda: list(self._store.list()))

    def read(self, item: Object, start: int, length: int) -> bytes | memoryview:
        """Return a range of an object."""
        return self._repeat(lambda: self._store.read(item, start, length))

    def write(self, key: str, source: Path, known: Digests) -> None:
        """Write a file to an object."""
        self._repeat(lambda: self._store.write(key, source, known))

    def stat(self, key: str) -> Object | None:
        """Return an object without its content."""
        return self._repeat(lambda: self._store.stat(key))

    def _repeat(self, action: Callable[[], T]) -> T:
        pause_s, until = FIRST_S, None
        while True:
            try:
                return action()
            except Unavailable as error:
                now = time.monotonic()
                until = now + self._patience_s if until is None else until
                wait_s = max(pause_s * random.uniform(0.5, 1.5), error.retry_after_s or 0.0)  # noqa: S311
                if now + wait_s > until:
                    raise
                self._notice(error.detail)
                time.sleep(wait_s)
                pause_s = min(2 * pause_s, LONGEST_S)

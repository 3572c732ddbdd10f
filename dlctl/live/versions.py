"""Count the changes of trainings, from any thread; wait for the next one in an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable


class Versions:
    """A number for each training that grows when something about it changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self.newest = 0
        """The number of the last change of any training."""
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self.closed = False

    def bump(self, training_ids: Iterable[str]) -> None:
        """Note that trainings have changed, and wake the waiting threads."""
        with self._lock:
            changed = list(training_ids)
            if not changed:
                return
            self.newest += 1
            self._numbers |= dict.fromkeys(changed, self.newest)
            self._wake()

    def after(self, seen: int) -> list[str]:
        """Return the trainings that have changed after a number."""
        with self._lock:
            return [training_id for training_id, n in self._numbers.items() if n > seen]

    async def wait(self, seen: int, timeout_s: float) -> None:
        """Wait until the newest number is above `seen`, the time is up, or all is closed."""
        mine = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            if self.newest > seen or self.closed:
                return
            self._waiting.add(mine)
        try:
            await asyncio.wait_for(mine[1].wait(), timeout_s)
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            return
        finally:
            with self._lock:
                self._waiting.discard(mine)

    def close(self) -> None:
        """Wake all waiters for good."""
        with self._lock:
            self.closed = True
            self._wake()

    def _wake(self) -> None:
        for loop, event in self._waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)
        self._waiting.clear()

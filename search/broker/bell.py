"""Wakes those who wait for something to happen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Bell:
    """Everybody who waits is woken at each ring."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        """Wake all who wait."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def wait_until(self, ready: Callable[[], bool], wait_s: float) -> bool:
        """Wait until something is the case, as far as rings tell; return whether it is."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_s
        while not (found := ready()) and (left := end - loop.time()) > 0:
            future: asyncio.Future[None] = loop.create_future()
            self._waiting.add(future)
            timer = loop.call_later(left, _set, future)
            try:
                await future
            finally:
                timer.cancel()
                self._waiting.discard(future)
        return found


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

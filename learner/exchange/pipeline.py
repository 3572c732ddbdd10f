"""A pipeline of small protocols, each a generator that yields what it waits for."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator

Condition = Callable[[], bool]
Protocol = Iterator[Condition]
"""Yields conditions that must be true before it continues."""

IN_FLIGHT = 8
"""Protocols that run at once: enough to hide the network's latency, few enough for the cache."""
SPINS = 2000
"""How often a waiting learner only yields to others (about 1 ms) before it sleeps."""
_NAP_S = 50e-6


def wait_until(reached: Condition) -> None:
    """Wait for other processes, and yield the processor to them."""
    for _ in range(SPINS):
        if reached():
            return
        os.sched_yield()
    while not reached():
        time.sleep(_NAP_S)


class Pipeline:
    """Runs protocols in the order in which they were added, several at a time."""

    def __init__(self) -> None:
        self._waiting: deque[Protocol] = deque()
        self._running: list[tuple[Protocol, Condition]] = []

    def add(self, protocol: Protocol) -> None:
        """Queue a protocol; `progress` starts it."""
        self._waiting.append(protocol)

    def progress(self) -> None:
        """Advance every protocol as far as it goes without waiting."""
        running = []
        for protocol, condition in self._running:
            if (now := _advance(protocol, condition)) is not None:
                running.append((protocol, now))
        while self._waiting and len(running) < IN_FLIGHT:
            protocol = self._waiting.popleft()
            if (now := _advance(protocol, _at_once)) is not None:
                running.append((protocol, now))
        self._running = running

    def wait(self) -> None:
        """Wait until every protocol has ended."""
        wait_until(self._ended)

    def _ended(self) -> bool:
        self.progress()
        return not self._running and not self._waiting


def _advance(protocol: Protocol, condition: Condition) -> Condition | None:
    """Return the condition that the protocol waits for now, or None at its end."""
    current: Condition | None = condition
    while current is not None and current():
        current = next(protocol, None)
    return current


def _at_once() -> bool:
    return True

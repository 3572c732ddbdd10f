"""The brokers that a nameserver knows, and when each was last heard. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass
class _Broker:
    incarnation: int
    address: str
    heard_at: float


class Registry:
    """Brokers that have registered and sent a heartbeat within the time-out."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._brokers: dict[str, _Broker] = {}

    def register(self, name: str, incarnation: int, address: str, now: float) -> None:
        """Add a broker, or a new incarnation of it."""
        known = self._brokers.get(name)
        if known is None or known.incarnation <= incarnation:
            self._brokers[name] = _Broker(incarnation, address, now)

    def beat(self, name: str, incarnation: int, now: float) -> bool:
        """Note a heartbeat; return whether the broker is registered."""
        self._drop(now)
        known = self._brokers.get(name)
        if known is None or known.incarnation < incarnation:
            return False
        if known.incarnation == incarnation:  # an earlier one is not asked to register again
            known.heard_at = now
        return True

    def lookup(self, without: str, now: float) -> tuple[str, int, str] | None:
        """Return name, incarnation and address of a random broker beside one."""
        self._drop(now)
        others = [name for name in self._brokers if name != without]
        if not others:
            return None
        name = random.choice(others)  # noqa: S311
        broker = self._brokers[name]
        return name, broker.incarnation, broker.address

    def _drop(self, now: float) -> None:
        silent = [n for n, b in self._brokers.items() if now - b.heard_at > self._timeout_s]
        for name in silent:
            del self._brokers[name]

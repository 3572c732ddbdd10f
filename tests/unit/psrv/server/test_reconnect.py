"""A connection that reconnects whenever it ends: what is logged about it."""

from __future__ import annotations

import pytest

from psrv.server import reconnect
from psrv.server.reconnect import Peer, ReconnectingConnection
from psrv.transport.base import DisconnectedError, Purpose, RefusedError
from psrv.transport.tcp import Connection


class Played(ReconnectingConnection):
    """Attempts, each some seconds after the last one, with an error or None if it connects."""

    def __init__(self, attempts: list[tuple[float, Exception | None]], lasts_s: float) -> None:
        self.now = 100.0
        self._lasts_s = lasts_s
        self.lines: list[str] = []
        self._attempts = attempts
        peer = Peer("primary", self._next, self.lines.append, self.lines.append)
        super().__init__(peer, "clocks", Purpose.CLOCKS)

    def _next(self, purpose: Purpose) -> Connection:
        if not self._attempts:
            self.stop()
            raise DisconnectedError("stopped")
        passed_s, error = self._attempts.pop(0)
        self.now += passed_s
        if error is not None:
            raise error
        return None  # type: ignore[return-value]

    def use(self, connection: Connection) -> None:
        self.now += self._lasts_s
        raise DisconnectedError("the other side ended the connection")


@pytest.mark.parametrize(
    ("attempts", "lines"),
    [
        ([(0, None), (1, DisconnectedError("no server answers")), (0.5, None)], ["connected"]),
        (
            [(0, None), (1, DisconnectedError("no server answers")),
             (1.5, DisconnectedError("no server answers")), (9, None)],
            ["connected", "no server answers", "connected"],
        ),
        ([(0, None), (0, RefusedError("node 1 was given up"))],
         ["connected", "node 1 was given up"]),
    ],
)  # fmt: skip
def test_a_short_outage_is_not_logged(monkeypatch, attempts, lines) -> None:
    """At the end of a training servers leave one by one: logging that would suggest a failure."""
    played = Played(attempts, lasts_s=5)
    monkeypatch.setattr(reconnect.time, "monotonic", lambda: played.now)
    played.run()
    assert played.lines == [f"primary, clocks: {line}" for line in lines]


def test_a_flapping_connection_is_logged(monkeypatch) -> None:
    played = Played([(0.5, None)] * 6, lasts_s=0.5)
    monkeypatch.setattr(reconnect.time, "monotonic", lambda: played.now)
    played.run()
    assert played.lines[:3] == [
        "primary, clocks: connected",
        "primary, clocks: the other side ended the connection",
        "primary, clocks: connected",
    ]  # fmt: skip

"""Which learners have not been heard of for long, by the clock of the supervisor's node."""

from __future__ import annotations

from collections.abc import Iterable

from dlctl.contract import Status

SILENCE_S = 30.0
"""After this long without a heartbeat, a learner counts as silent."""


class SilenceCheck:
    """Remembers when each learner's heartbeat has changed."""

    def __init__(self) -> None:
        self._changed: dict[int, tuple[float, float]] = {}
        """By rank: the newest heartbeat, and since when it is the newest."""

    def look(self, now: float, statuses: Iterable[Status]) -> str:
        """Return a sentence that names the silent learners; empty if there are none.

        Args:
            now: Seconds on a clock of this node that never jumps.
        """
        silent = []
        for status in statuses:
            seen, since = self._changed.get(status.rank, (-1.0, now))
            if status.heartbeat_at != seen or status.state.final:
                since = now
            self._changed[status.rank] = (status.heartbeat_at, since)
            if now - since > SILENCE_S:
                silent.append(f"learner {status.rank} on {status.host} ({now - since:.0f} s)")
        return f"no heartbeat from {', '.join(silent)}" if silent else ""

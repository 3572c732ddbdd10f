"""From counters that only grow to rates."""

from __future__ import annotations

from collections.abc import Mapping


class Rates:
    """Rates per second of counters, between one call and the next."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}
        self._at = 0.0

    def read(self, now: float, totals: Mapping[str, float]) -> dict[str, float]:
        """Return the rate of each counter that was there at the last call, too.

        Args:
            now: seconds on a clock that never goes back.
        """
        elapsed_s = now - self._at
        found = {}
        if self._before and elapsed_s > 0:
            # A counter falls if a process has ended whose numbers nobody took over.
            found = {
                name: max(0.0, total - self._before[name]) / elapsed_s
                for name, total in totals.items() if name in self._before
            }  # fmt: skip
        self._before, self._at = dict(totals), now
        return found

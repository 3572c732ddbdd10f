"""Find where the learning rate was changed by a step, and not by a schedule at every step. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

_LEAST = 0.05
"""A smaller relative change is none."""
_OFTEN = 0.2
"""If a larger share of the neighbours differs, a schedule changes the rate all the time."""
_MOST = 1000


@dataclass(frozen=True)
class RateChange:
    """A change of the learning rate."""

    step: float
    """The last step before the first measurement with the new rate."""
    before: float
    after: float


@dataclass
class Rates:
    """Takes the learning rate of step after step, and keeps its changes only."""

    _last: tuple[float, float] | None = None
    _neighbours: int = 0
    _moved: list[RateChange] = field(default_factory=list)
    _forgotten: int = 0

    def add(self, step: float, rate: float) -> None:
        """Take the rate of a step."""
        last, self._last = self._last, (step, rate)
        if last is None:
            return
        self._neighbours += 1
        if abs(rate - last[1]) > 1e-9 * abs(last[1]):
            self._moved.append(RateChange(last[0], last[1], rate))
            if len(self._moved) > _MOST:
                del self._moved[: _MOST // 2]
                self._forgotten += _MOST // 2

    def drop_after(self, step: float) -> None:
        """Forget the changes after a step: it and what follows is done again."""
        if self._last is not None and self._last[0] > step:
            kept = [change for change in self._moved if change.step < step]
            undone = self._moved[len(kept) :]
            self._last = step, undone[0].before if undone else self._last[1]
            self._moved = kept

    def changes(self) -> list[RateChange]:
        """Return the newest changes in their order; none if the rate changes all the time."""
        moved = self._forgotten + len(self._moved)
        if moved > 2 and moved > _OFTEN * self._neighbours:
            return []
        return [c for c in self._moved if abs(c.after - c.before) > _LEAST * abs(c.before)]


def rate_changes(points: Iterable[tuple[float, float]]) -> list[RateChange]:
    """Return the changes in a curve of the learning rate; none if it changes all the time."""
    rates = Rates()
    for step, rate in points:
        rates.add(step, rate)
    return rates.changes()

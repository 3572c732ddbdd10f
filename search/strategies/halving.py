"""Successive halving without waiting: trials that do badly at a rung end there."""

from __future__ import annotations

from search.strategies.base import Told, Trial
from search.strategies.plain import Random
from search.strategies.space import Space


class Asha(Random):
    """Random points, of which each goes on at a rung only among the best 1/eta seen there.

    L. Li, K. Jamieson et al., 2020, section 3.2, in the form that stops trials instead of pausing
    them: nothing has to wait, and no checkpoint is needed.

    Args:
        first: the step of the first rung; the next ones are `eta` times as far.
        most: the step at which a trial ends by itself.
    """

    def __init__(
        self, space: Space, seed: int, first: int = 1, eta: int = 3, most: int = 81
    ) -> None:
        super().__init__(space, seed)
        self._bracket = _Bracket(first, eta, most)

    def report(self, trial: Trial, step: int, value: float) -> bool:
        """Return whether the trial is good enough at the rungs that it has reached."""
        return self._bracket.report(trial, step, value)

    def tell(self, trial: Trial, told: Told) -> None:
        """Do nothing: rungs learn from reports."""


class Hyperband(Random):
    """Brackets of successive halving, which trials join in turn: each has a first rung of its own.

    L. Li et al., 2018, algorithm 1, asynchronous as in Li et al., 2020. A trial that starts slowly
    survives in a bracket whose first rung comes late.

    Args:
        eta, most: as of `asha`.
    """

    def __init__(self, space: Space, seed: int, eta: int = 3, most: int = 81) -> None:
        super().__init__(space, seed)
        first = 1
        self._brackets = []
        while first <= most:
            self._brackets.append(_Bracket(first, eta, most))
            first *= eta

    def report(self, trial: Trial, step: int, value: float) -> bool:
        """Return whether the trial is good enough at the rungs of its bracket."""
        return self._brackets[trial.number % len(self._brackets)].report(trial, step, value)

    def tell(self, trial: Trial, told: Told) -> None:
        """Do nothing: rungs learn from reports."""


class _Bracket:
    def __init__(self, first: int, eta: int, most: int) -> None:
        self._eta = eta
        self._rungs: list[tuple[int, dict[int, float]]] = []
        step = first
        while step < most:
            self._rungs.append((step, {}))
            step *= eta

    def report(self, trial: Trial, step: int, value: float) -> bool:
        goes_on = True
        for at, seen in self._rungs:
            if step < at or trial.number in seen:
                continue
            seen[trial.number] = value
            ranks = sorted(seen.values())
            kept = max(1, len(ranks) // self._eta)
            # Until eta trials have come here, each of them is among the best.
            if len(ranks) >= self._eta and value > ranks[kept - 1]:
                goes_on = False
        return goes_on

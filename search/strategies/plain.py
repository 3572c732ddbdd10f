"""Strategies whose points take no notice of results: grid, random, Latin hypercube.

Successive halving draws random points, too; trials that do badly at a rung end there, and nothing
waits.
"""

from __future__ import annotations

import itertools
import random

from search.strategies.base import Point, Strategy, Trial, counted_random
from search.strategies.space import Space


class Grid(Strategy):
    """Every combination once.

    Args:
        levels: how many values a continuous parameter has.
    """

    def __init__(self, space: Space, seed: int, levels: int = 5) -> None:
        del seed
        self._points = space.grid(levels)

    def ask(self, n: int) -> list[Point]:
        """Return the next points; none once all were asked for."""
        return list(itertools.islice(self._points, n))


class Random(Strategy):
    """Independent random points."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space, self._seed, self._next = space, seed, 0

    def ask(self, n: int) -> list[Point]:
        """Return n points."""
        numbers = range(self._next, self._next + n)
        self._next += n
        return [self._space.sample(counted_random(self._seed, number)) for number in numbers]


class LatinHypercube(Strategy):
    """Points of which no two share a row of the grid in any dimension, `samples` at a time.

    M. D. McKay, R. J. Beckman, W. J. Conover, 1979.
    """

    def __init__(self, space: Space, seed: int, samples: int = 16) -> None:
        self._space, self._seed, self._samples = space, seed, samples
        self._next = 0
        self._rows: list[list[float]] = []

    def ask(self, n: int) -> list[Point]:
        """Return n points."""
        points = []
        for _ in range(n):
            place = self._next % self._samples
            if place == 0:
                self._rows = self._block(self._next // self._samples)
            points.append(self._space.at(self._rows[place]))
            self._next += 1
        return points

    def _block(self, number: int) -> list[list[float]]:
        numbers = random.Random(f"{self._seed}:block {number}")  # noqa: S311 - no secret
        columns = []
        for _ in self._space.parameters:
            column = [(row + numbers.random()) / self._samples for row in range(self._samples)]
            numbers.shuffle(column)
            columns.append(column)
        return [list(row) for row in zip(*columns, strict=True)]


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
        for at, values in self._rungs:
            if step < at or trial.number in values:
                continue
            values[trial.number] = value
            ranks = sorted(values.values())
            kept = max(1, len(ranks) // self._eta)
            # Until eta trials have come here, each of them is among the best.
            if len(ranks) >= self._eta and value > ranks[kept - 1]:
                goes_on = False
        return goes_on

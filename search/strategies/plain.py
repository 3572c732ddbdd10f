"""Strategies that take no notice of results: grid, random, Latin hypercube."""

from __future__ import annotations

import itertools
import random

from search.strategies.base import Point, Steady, Told, Trial, counted_random
from search.strategies.space import Space


class Grid(Steady):
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

    def tell(self, trial: Trial, told: Told) -> None:
        """Do nothing."""


class Random(Steady):
    """Independent random points."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space, self._seed, self._next = space, seed, 0

    def ask(self, n: int) -> list[Point]:
        """Return n points."""
        numbers = range(self._next, self._next + n)
        self._next += n
        return [self._space.sample(counted_random(self._seed, number)) for number in numbers]

    def tell(self, trial: Trial, told: Told) -> None:
        """Do nothing."""


class LatinHypercube(Steady):
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

    def tell(self, trial: Trial, told: Told) -> None:
        """Do nothing."""

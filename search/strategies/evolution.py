"""Evolution without generations: as soon as a trial has ended, its place can be bred anew."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections import deque
from collections.abc import MutableSequence
from dataclasses import dataclass

from search.strategies.base import Point, Steady, Told, Trial, counted_random
from search.strategies.space import Space


@dataclass(frozen=True)
class _Member:
    number: int
    point: Point
    value: float


class _Evolution(Steady):
    """Random points until the population is full; from then on children of its members."""

    _members: MutableSequence[_Member]

    def __init__(self, space: Space, seed: int, population: int) -> None:
        self._space, self._seed, self._next = space, seed, 0
        self._size = population

    def ask(self, n: int) -> list[Point]:
        """Return n points."""
        return [self._point() for _ in range(n)]

    def _point(self) -> Point:
        numbers = counted_random(self._seed, self._next)
        self._next += 1
        if len(self._members) < self._size:
            return self._space.sample(numbers)
        return self._child(numbers)

    @abstractmethod
    def _child(self, numbers: random.Random) -> Point:
        """Return a point that members of the population have bred."""

    def _parent(self, numbers: random.Random, sample: int) -> Point:
        """Return the best of so many random members."""
        several = numbers.sample(list(self._members), min(sample, len(self._members)))
        return min(several, key=lambda each: (each.value, each.number)).point


class Genetic(_Evolution):
    """The genetic algorithm of the paper, in a steady-state form.

    A child of two parents, each the best of `tournament` members, replaces the worst member that
    it beats. Until `population` trials have succeeded, points are random.
    """

    def __init__(
        self, space: Space, seed: int, population: int = 20, tournament: int = 3,
        mutation: float = 0.1, crossover: float = 0.7,
    ) -> None:  # fmt: skip
        super().__init__(space, seed, population)
        self._tournament, self._mutation, self._crossover = tournament, mutation, crossover
        self._members: list[_Member] = []

    def _child(self, numbers: random.Random) -> Point:
        child = self._parent(numbers, self._tournament)
        if numbers.random() < self._crossover:
            child = self._space.crossed(child, self._parent(numbers, self._tournament), numbers)
        return self._space.mutated(child, numbers, self._mutation)

    def tell(self, trial: Trial, told: Told) -> None:
        """Let a trial take the place of the worst member, if it is better."""
        if told.value is None:
            return
        member = _Member(trial.number, trial.point, told.value)
        if len(self._members) < self._size:
            self._members.append(member)
            return
        worst = max(self._members, key=lambda each: (each.value, each.number))
        if member.value < worst.value:
            self._members[self._members.index(worst)] = member


class Aging(_Evolution):
    """Regularized evolution: the oldest member dies, however good it is.

    E. Real, A. Aggarwal, Y. Huang, Q. V. Le, 2019, algorithm 1.
    """

    def __init__(
        self, space: Space, seed: int, population: int = 50, sample: int = 10,
        mutation: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(space, seed, population)
        self._sample, self._mutation = sample, mutation
        self._members: deque[_Member] = deque(maxlen=population)

    def _child(self, numbers: random.Random) -> Point:
        return self._space.mutated(self._parent(numbers, self._sample), numbers, self._mutation)

    def tell(self, trial: Trial, told: Told) -> None:
        """Add a trial as the youngest member."""
        if told.value is not None:
            self._members.append(_Member(trial.number, trial.point, told.value))

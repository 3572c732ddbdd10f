"""Evolution without generations: as soon as a trial has ended, its place can be bred anew.

Population based training is the same for members that train on: they copy what does better.
"""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections import deque
from collections.abc import MutableSequence
from dataclasses import dataclass

from search.strategies.base import Point, Proposal, Strategy, Trial, TrialResult, counted_random
from search.strategies.space import Space


@dataclass(frozen=True)
class _Member:
    number: int
    point: Point
    value: float


class _Evolution(Strategy):
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

    def tell(self, trial: Trial, result: TrialResult) -> None:
        """Let a trial take the place of the worst member, if it is better."""
        if result.value is None:
            return
        member = _Member(trial.number, trial.point, result.value)
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

    def tell(self, trial: Trial, result: TrialResult) -> None:
        """Add a trial as the youngest member."""
        if result.value is not None:
            self._members.append(_Member(trial.number, trial.point, result.value))


@dataclass
class _Place:
    last: Trial
    value: float
    """The metric of its newest trial; infinite if that failed."""


class PopulationBased(Strategy):
    """Trains `population` members; each trial goes on from the checkpoint of an earlier one.

    M. Jaderberg et al., 2017, algorithm 1, with truncation selection (section 4.1.2): a member
    among the worst `share` goes on from the newest checkpoint of one of the best `share`, with
    values near that one's. Asynchronous: a member's next trial waits for its own result alone.

    Args:
        share: of the members, those that are replaced, and those that are copied.
        factor: a copied number is multiplied or divided by it.
        resample: with this probability a copied value is drawn anew instead.
    """

    def __init__(
        self, space: Space, seed: int, population: int = 16, share: float = 0.2,
        factor: float = 1.2, resample: float = 0.25,
    ) -> None:  # fmt: skip
        if population < 2 or not 0 < share <= 0.5 or factor <= 1:  # noqa: PLR2004
            raise ValueError("population >= 2, 0 < share <= 0.5 and factor > 1 are needed")
        self._space, self._seed = space, seed
        self._share, self._factor, self._resample = share, factor, resample
        self._population, self._next = population, 0
        self._ready: deque[int] = deque(range(population))
        """Members without a trial that runs, the one that has waited longest first."""
        self._members: dict[int, _Place] = {}
        self._member_of: dict[int, int] = {}

    def ask(self, n: int) -> list[Point | Proposal]:
        """Return a trial for each member that has none, at most n."""
        return [self._propose(self._ready.popleft()) for _ in range(min(n, len(self._ready)))]

    def _propose(self, name: int) -> Point | Proposal:
        numbers = counted_random(self._seed, self._next)
        self._member_of[self._next] = name
        self._next += 1
        if (member := self._members.get(name)) is None:
            return self._space.sample(numbers)
        order = sorted(self._members, key=lambda each: (self._members[each].value, each))
        cut = max(1, round(self._share * len(order)))
        best, worst = order[:cut], order[-cut:]
        if len(order) == self._population and name in worst:
            model = self._members[numbers.choice(best)]
            if model.value < member.value:
                point = self._space.explored(
                    model.last.point, numbers, self._factor, self._resample
                )
                return Proposal(point, model.last.number)
        if math.isinf(member.value):  # its last trial failed: nothing to go on from
            return self._space.sample(numbers)
        return Proposal(member.last.point, member.last.number)

    def tell(self, trial: Trial, result: TrialResult) -> None:
        """Let the trial's member go on."""
        name = self._member_of.pop(trial.number)
        self._members[name] = _Place(trial, math.inf if result.value is None else result.value)
        self._ready.append(name)

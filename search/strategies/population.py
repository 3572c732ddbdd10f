"""Population based training: members that train side by side and copy what does better."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from search.strategies.base import Point, Proposal, Steady, Told, Trial, counted_random
from search.strategies.space import Space


@dataclass
class _Member:
    last: Trial
    value: float
    """The metric of its newest trial; infinite if that failed."""


class PopulationBased(Steady):
    """Trains `population` members; each trial goes on from the checkpoint of an earlier one.

    M. Jaderberg et al., 2017, algorithm 1, with truncation selection (section 4.1.2): a member
    among the worst `share` goes on from the newest checkpoint of one of the best `share`, with
    values near that one's. Asynchronous: a member's next trial waits for its own result alone.

    Args:
        population: how many members there are.
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
        self._members: dict[int, _Member] = {}
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

    def tell(self, trial: Trial, told: Told) -> None:
        """Let the trial's member go on."""
        name = self._member_of.pop(trial.number)
        self._members[name] = _Member(trial, math.inf if told.value is None else told.value)
        self._ready.append(name)

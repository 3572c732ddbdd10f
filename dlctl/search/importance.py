"""Measure how much of the differences between trials each parameter explains alone. Pure.

The trials' metrics are ranked. For each parameter the trials are divided into groups: by the value
of a choice, by ranges of a number that hold equally many trials. The share of the ranks' variance
that lies between the groups is the correlation ratio; what chance alone would give is taken off
(epsilon squared). By random permutations of the ranks it is tested whether chance gives as much.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dlctl.contract.search import Parameter
from dlctl.search.trials import TrialRow

METHOD = (
    "The share of the differences between the trials' ranks that lies between groups of a "
    "parameter's values (correlation ratio, epsilon squared). It sees each parameter alone: two "
    "that matter only together may both look unimportant. A strategy that learns tries few bad "
    "values, so shares of different strategies can't be compared. Failed trials don't count."
)
LEAST = 10
"""Fewer trials tell nothing."""
_MOST = 2000
_MOST_GROUPS = 8
_IN_GROUP = 5
"""A range of numbers holds at least so many trials."""
_PERMUTATIONS = 199
_RARE = 0.01


@dataclass(frozen=True)
class Importance:
    """The share that one parameter explains."""

    name: str
    share: float | None
    """From 0 to 1; None: too few trials, or too few different values."""
    by_chance: bool
    """Whether chance gives as much in more than 1 % of random orders: there are several parameters,
    and none of them is to look important by luck."""
    trials: int
    """In how many trials with a metric it exists."""
    best: str
    """The group of values with the best ranks, in words."""


def importances(
    space: Sequence[Parameter], rows: Sequence[TrialRow], *, maximize: bool
) -> list[Importance]:
    """Return what each parameter explains, the most important one first."""
    known = [row for row in rows if row.metric is not None]
    known = known[:: len(known) // _MOST + 1]
    found = [_importance(each, known, maximize) for each in space]
    return sorted(found, key=lambda each: -1.0 if each.share is None else each.share, reverse=True)


def _importance(parameter: Parameter, rows: Sequence[TrialRow], maximize: bool) -> Importance:
    mine = [row for row in rows if parameter.name in row.point]
    groups = _groups(parameter, [row.point[parameter.name] for row in mine])
    if len(mine) < LEAST or len(groups) < 2:
        return Importance(parameter.name, None, True, len(mine), "")
    sign = -1 if maximize else 1
    ranks = ranked([sign * (row.metric or 0.0) for row in mine])
    members = [places for _, places in groups]
    total = _between(ranks, [[place] for place in range(len(ranks))])
    if total == 0:
        return Importance(parameter.name, 0.0, True, len(mine), "")
    ratio = _between(ranks, members) / total
    shuffled = list(ranks)
    chance = random.Random(parameter.name)  # noqa: S311 - no secret
    as_much = 0
    for _ in range(_PERMUTATIONS):
        chance.shuffle(shuffled)
        as_much += _between(shuffled, members) / total >= ratio
    count, k = len(ranks), len(members)
    unbiased = ratio - (1 - ratio) * (k - 1) / (count - k) if count > k else 0.0
    best = min(groups, key=lambda group: sum(ranks[p] for p in group[1]) / len(group[1]))
    return Importance(
        parameter.name, max(0.0, unbiased), (as_much + 1) / (_PERMUTATIONS + 1) > _RARE,
        len(mine), best[0],
    )  # fmt: skip


def ranked(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, from 0; equal values share the middle of theirs."""
    order = sorted(values)
    return [(bisect_left(order, each) + bisect_right(order, each) - 1) / 2 for each in values]


def _groups(parameter: Parameter, values: Sequence[Any]) -> list[tuple[str, list[int]]]:
    """Return groups of places with the words for their values."""
    if parameter.kind == "choice":
        by_value: dict[str, list[int]] = {}
        for place, value in enumerate(values):
            by_value.setdefault(str(value), []).append(place)
        return list(by_value.items())
    order = sorted(range(len(values)), key=lambda place: values[place])
    count = max(1, min(_MOST_GROUPS, len(values) // _IN_GROUP))
    groups: list[list[int]] = []
    for n, place in enumerate(order):
        is_equal = bool(groups) and values[groups[-1][-1]] == values[place]
        if not groups or (n >= len(groups) * len(order) / count and not is_equal):
            groups.append([])
        groups[-1].append(place)
    return [(_range(values[g[0]], values[g[-1]]), g) for g in groups]


def _range(low: float, high: float) -> str:
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


def _between(ranks: Sequence[float], members: Sequence[Sequence[int]]) -> float:
    mean = sum(ranks) / len(ranks)
    return sum(len(m) * (sum(ranks[p] for p in m) / len(m) - mean) ** 2 for m in members)

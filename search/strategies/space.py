"""The space of a search: parameters, their distributions, and the conditions between them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from dlctl.contract.search import Parameter
from search.strategies.base import Point


class Space:
    """All points: a parameter exists in a point if its conditions hold there.

    The parameters are in an order in which each comes after those that it depends on.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = _sorted(parameters)

    def sample(self, numbers: random.Random) -> Point:
        """Return a random point."""
        return self.at([numbers.random() for _ in self.parameters])

    def at(self, place: Sequence[float]) -> Point:
        """Return the point at a place of the unit cube: a coordinate for each parameter."""
        point: Point = {}
        for parameter, share in zip(self.parameters, place, strict=True):
            if _exists(parameter, point):
                point[parameter.name] = value_at(parameter, share)
        return point

    def grid(self, levels: int) -> Iterator[Point]:
        """Yield each combination of values once.

        Args:
            levels: how many values a continuous parameter has, its ends included.
        """
        seen = set()
        choices = [_levels(parameter, levels) for parameter in self.parameters]
        for values in itertools.product(*choices):
            point: Point = {}
            for parameter, value in zip(self.parameters, values, strict=True):
                if _exists(parameter, point):
                    point[parameter.name] = value
            key = repr(sorted(point.items()))
            if key not in seen:
                seen.add(key)
                yield point

    def mutated(self, point: Point, numbers: random.Random, rate: float) -> Point:
        """Return a point near another one: at least one of its parameters has a new value."""
        present = [parameter for parameter in self.parameters if parameter.name in point]
        forced = numbers.choice(present).name if present else ""
        changed: Point = {}
        for parameter in self.parameters:
            if not _exists(parameter, changed):
                continue
            old = point.get(parameter.name)
            if parameter.name not in point:
                changed[parameter.name] = value_at(parameter, numbers.random())
            elif parameter.name == forced or numbers.random() < rate:
                changed[parameter.name] = neighbour(parameter, old, numbers)
            else:
                changed[parameter.name] = old
        return changed

    def explored(
        self, point: Point, numbers: random.Random, factor: float, resample: float
    ) -> Point:
        """Return a point near another one, for a training that goes on with it.

        Each number is multiplied or divided by the factor, within its range; with the probability
        `resample` a value is drawn anew instead, which is the only way in which a choice changes.
        """
        changed: Point = {}
        for parameter in self.parameters:
            if not _exists(parameter, changed):
                continue
            if parameter.name not in point or numbers.random() < resample:
                changed[parameter.name] = value_at(parameter, numbers.random())
            elif parameter.kind == "choice":
                changed[parameter.name] = point[parameter.name]
            else:
                new = point[parameter.name] * (factor if numbers.random() < 0.5 else 1 / factor)  # noqa: PLR2004
                share = min(1.0, max(0.0, share_of(parameter, new)))
                changed[parameter.name] = value_at(parameter, share)
        return changed

    def crossed(self, one: Point, other: Point, numbers: random.Random) -> Point:
        """Return a point that takes each value from one of its parents."""
        child: Point = {}
        for parameter in self.parameters:
            if _exists(parameter, child):
                parents = [each for each in (one, other) if parameter.name in each]
                child[parameter.name] = (
                    numbers.choice(parents)[parameter.name]
                    if parents
                    else value_at(parameter, numbers.random())
                )
        return child


def value_at(parameter: Parameter, share: float) -> Any:
    """Return a parameter's value at a share, from 0 to 1, of its range."""
    if parameter.kind == "choice":
        return parameter.choices[
            min(int(share * len(parameter.choices)), len(parameter.choices) - 1)
        ]
    low, high = parameter.low, parameter.high
    if parameter.kind == "int":
        step = int(parameter.step or 1)
        if parameter.log:
            value = math.exp(math.log(low - 0.5) + share * math.log((high + 0.5) / (low - 0.5)))
            return int(min(high, max(low, low + step * round((value - low) / step))))
        count = int((high - low) // step) + 1
        return int(low) + step * min(int(share * count), count - 1)
    if parameter.log:
        value = math.exp(math.log(low) + share * math.log(high / low))
    else:
        value = low + share * (high - low)
    if parameter.step:
        value = low + parameter.step * round((value - low) / parameter.step)
    return min(high, max(low, value))


def share_of(parameter: Parameter, value: Any) -> float:
    """Return where a value lies in its parameter's range, from 0 to 1."""
    if parameter.kind == "choice":
        return (parameter.choices.index(value) + 0.5) / len(parameter.choices)
    if parameter.high == parameter.low:
        return 0.5
    if parameter.log:
        return math.log(value / parameter.low) / math.log(parameter.high / parameter.low)
    return float((value - parameter.low) / (parameter.high - parameter.low))


NEAR = 0.15
"""Standard deviation of a mutation, as a share of the range."""


def neighbour(parameter: Parameter, value: Any, numbers: random.Random) -> Any:
    """Return another value near one: another choice, or a draw around the number."""
    if parameter.kind == "choice":
        others = [each for each in parameter.choices if each != value]
        return numbers.choice(others) if others else value
    share = share_of(parameter, value)
    for _ in range(20):
        near = value_at(parameter, min(1.0, max(0.0, numbers.gauss(share, NEAR))))
        if near != value:
            return near
    return value_at(parameter, numbers.random())


def _exists(parameter: Parameter, point: Point) -> bool:
    return all(name in point and point[name] in values for name, values in parameter.when.items())


def _levels(parameter: Parameter, levels: int) -> list[Any]:
    if parameter.kind == "choice":
        return list(parameter.choices)
    if parameter.kind == "int" and not parameter.log:
        step = int(parameter.step or 1)
        whole = list(range(int(parameter.low), int(parameter.high) + 1, step))
        if len(whole) <= levels:
            return whole
    if parameter.step and not parameter.log and parameter.kind == "float":
        count = round((parameter.high - parameter.low) / parameter.step)
        if count + 1 <= levels:
            return [parameter.low + n * parameter.step for n in range(count + 1)]
    shares = [n / (levels - 1) for n in range(levels)] if levels > 1 else [0.5]
    return list(dict.fromkeys(value_at(parameter, share) for share in shares))


def _sorted(parameters: Sequence[Parameter]) -> list[Parameter]:
    """Return the parameters, each after those on which it depends.

    Raises:
        ValueError: a condition names no parameter, or two depend on each other.
    """
    left = list(parameters)
    done: list[Parameter] = []
    while left:
        known = {each.name for each in done}
        ready = [each for each in left if set(each.when) <= known]
        if not ready:
            raise ValueError(
                f"the conditions of {', '.join(each.name for each in left)} name parameters that "
                "do not exist, or depend on each other"
            )
        done += ready
        left = [each for each in left if each not in ready]
    return done

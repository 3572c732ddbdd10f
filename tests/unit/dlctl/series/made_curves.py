"""Curves of which it is known whether they are on a plateau, and from when."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Made:
    points: list[tuple[float, float]]
    flat_from: float | None
    """The step from which nothing is left to gain: less than 2 % of the whole, or of the noise."""
    lower: bool
    what: str


def made_curves(count: int = 200) -> Iterator[Made]:
    """Yield losses and accuracies, half of which have stopped getting better."""
    for seed in range(count):
        draw = random.Random(seed)
        flat, lower = seed % 2 == 0, seed % 4 < 2
        n, per = draw.choice([16, 30, 60, 120, 300]), draw.choice([1, 50, 500])
        level = draw.choice([0.0, 0.002, 0.01, 0.03])
        # With this time constant (in values) a curve is flat after five of them.
        tau = n / draw.uniform(12, 25) if flat else n / draw.uniform(0.5, 2.5)
        points = []
        for i in range(n):
            gain = 1 - math.exp(-i / tau)
            value = (2.3 - 2 * gain if lower else 0.1 + 0.85 * gain) + draw.gauss(0, level)
            points.append((float(i * per), value))
        flat_from = 5 * tau * per if flat else None
        yield Made(points, flat_from, lower, f"seed {seed}: {n} values, noise {level}, {flat=}")

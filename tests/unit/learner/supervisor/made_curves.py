"""Curves of which it is known whether they are on a plateau, and from when.

`python tests/unit/learner/supervisor/made_curves.py` prints what docs/metrics.md says of them.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from learner.supervisor.oversight.plateau import Curve
from learner.supervisor.oversight.standstill import find_plateau


@dataclass(frozen=True)
class Made:
    points: list[tuple[float, float]]
    flat_from: float | None
    """The step from which nothing is left to gain: less than 2 % of the whole, or of the noise."""
    lower: bool
    what: str


def made_curves(count=200):
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


@dataclass(frozen=True)
class Figures:
    """How well plateaus are found: counts of curves."""

    right: int
    wrong: int
    missed: int

    @property
    def precision(self):
        return self.right / (self.right + self.wrong)

    @property
    def recall(self):
        return self.right / (self.right + self.missed)


def told(count=400):
    """Look after each value, as a node does; a plateau that is told too early is wrong, too."""
    return _figures([(_first_told(made), made) for made in made_curves(count)])


def _first_told(made):
    curve = Curve()
    for step, value in made.points:
        curve.add(step, -value if made.lower else value)
        if find_plateau(curve.points, curve.whole) is not None:
            return step
    return None


def _figures(found):
    def is_right(step, made):
        # After three time constants 5 % are left to gain.
        return made.flat_from is not None and step >= 0.6 * made.flat_from

    right = sum(step is not None and is_right(step, made) for step, made in found)
    wrong = sum(step is not None and not is_right(step, made) for step, made in found)
    missed = sum(step is None and made.flat_from is not None for step, made in found)
    return Figures(right, wrong, missed)


if __name__ == "__main__":
    figures = told()
    print(f"precision {figures.precision:.3f}, recall {figures.recall:.3f}, {figures}")

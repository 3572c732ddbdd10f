"""Trends beyond noise: Mann-Kendall's test and Sen's slope.

Mann (1945), Kendall (1975): the test counts pairs that rise and fall; it assumes no distribution.
Sen (1968): the slope is the median of all pairs' slopes. Both look at all pairs, so that some
hundreds of values are enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median


def trend(values: Sequence[float]) -> float:
    """Return Mann-Kendall's z: above 1.64 values rise, below -1.64 they fall (one-sided, 5 %)."""
    n = len(values)
    if n < 3:
        return 0.0
    s = sum(
        (values[j] > values[i]) - (values[j] < values[i]) for i in range(n) for j in range(i + 1, n)
    )
    ties: dict[float, int] = {}
    for value in values:
        ties[value] = ties.get(value, 0) + 1
    tied = sum(t * (t - 1) * (2 * t + 5) for t in ties.values() if t > 1)
    variance = (n * (n - 1) * (2 * n + 5) - tied) / 18
    return 0.0 if variance <= 0 or s == 0 else (s - math.copysign(1, s)) / math.sqrt(variance)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return Sen's slope of (x, y); 0 without two different x."""
    slopes = _slopes(points)
    return median(slopes) if slopes else 0.0


def highest_slope(points: Sequence[tuple[float, float]]) -> float:
    """Return what Sen's slope of (x, y) does not exceed with 95 % confidence (Sen 1968)."""
    n = len(points)
    slopes = sorted(_slopes(points))
    if not slopes:
        return 0.0
    beyond = 1.64 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return slopes[min(len(slopes) - 1, math.ceil((len(slopes) + beyond) / 2))]


def _slopes(points: Sequence[tuple[float, float]]) -> list[float]:
    return [
        (b[1] - a[1]) / (b[0] - a[0]) for i, a in enumerate(points) for b in points[i + 1 :]
        if b[0] != a[0]
    ]  # fmt: skip


def noise(values: Sequence[float]) -> float:
    """Return the standard deviation of the noise, from differences of neighbours, robustly."""
    if len(values) < 3:
        return 0.0
    steps = [abs(b - a) for a, b in zip(values, values[1:])]
    return 1.4826 * median(steps) / math.sqrt(2)

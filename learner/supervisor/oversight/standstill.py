"""Prove that a curve has stopped getting better, and find since when. Pure.

The newest half of the values since the last change of the learning rate is on a plateau if
Mann-Kendall's test finds no improvement among them, or if what Sen's slope promises over them is
too little to matter beside what the whole training has gained. As a supervisor that looks again and
again would sooner or later meet values that stand still by chance, they must also, with confidence,
get better by no more than a twentieth of the whole gain. The plateau began with the longest run of
newest values of which the first is true, at its first value that comes as near to the newest ones
as noise allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from dlctl.contract.measured.trend import highest_slope, noise, slope, trend

LEAST = 8
"""Fewer values tell nothing."""
_SURE = 1.64
"""One-sided, 5 %."""
_TOO_LITTLE = 0.01
"""Share of the whole gain."""
_PROVEN = 0.05
"""Share of the whole gain that a plateau does not exceed, with 95 % confidence."""
METHOD = "Mann-Kendall's test and Sen's slope over the newest values"


@dataclass(frozen=True)
class Plateau:
    """The newest values do not get better."""

    since_step: float
    level: float
    """The median of the newest values, with its sign turned if lower values are better."""
    margin: float
    """What a level must exceed this one by to be better, and not only other noise."""


def find_plateau(points: Sequence[tuple[float, float]], whole: float) -> Plateau | None:
    """Return the plateau at the end of (step, gain) since the learning rate changed, if any.

    Args:
        points: at most some hundreds: all pairs are looked at.
        whole: what the training has gained from its first value to its best one.
    """
    if len(points) < LEAST:
        return None
    begin = len(points) - max(LEAST, len(points) // 2)
    newest = points[begin:]
    if not _is_flat(newest, whole):
        return None
    if highest_slope(newest) * _width(newest) > _PROVEN * whole:
        return None
    step = max(1, len(points) // 30)
    while begin > 0 and _is_flat(points[max(0, begin - step) :], whole):
        begin = max(0, begin - step)
    gains = [gain for _, gain in points[begin:]]
    margin = max(2 * noise(gains), _TOO_LITTLE * whole)
    level = median_of_newest(gains)
    return Plateau(points[begin + _reached(gains, level - margin)][0], level, margin)


def median_of_newest(gains: Sequence[float]) -> float:
    """Return the level of the newest values."""
    return median(gains[-LEAST:])


def _width(points: Sequence[tuple[float, float]]) -> float:
    return points[-1][0] - points[0][0]


def _reached(gains: Sequence[float], near: float) -> int:
    """Return the index of the first value that is near to the newest ones."""
    return next(i for i, gain in enumerate(gains) if gain >= near or i == len(gains) - LEAST)


def _is_flat(points: Sequence[tuple[float, float]], whole: float) -> bool:
    if trend([value for _, value in points]) < _SURE:
        return True
    return slope(points) * _width(points) < _TOO_LITTLE * whole

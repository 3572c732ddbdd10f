"""Find whether a curve has stopped getting better, and since when.

The newest values since the last change of the learning rate are on a plateau if Mann-Kendall's test
finds no improvement among them, or if what Sen's slope promises over them is too little to matter
beside what the whole training has gained. The plateau began with the longest run of newest values
of which that is true, at its first value that comes as near to the newest ones as noise allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from dlctl.series.trend import noise, slope, thinned, trend

LEAST = 8
"""Fewer values tell nothing."""
_SURE = 1.64
"""One-sided, 5 %."""
_TOO_LITTLE = 0.01
"""Share of the whole gain."""
METHOD = "Mann-Kendall's test and Sen's slope over the newest values"


@dataclass(frozen=True)
class Plateau:
    """The newest values do not get better."""

    since_step: float
    values: int
    """How many values it spans."""
    gain: float
    """What Sen's slope promises over them; above 0 is better."""


def find_plateau(
    points: Sequence[tuple[float, float]], lower_is_better: bool, since_step: float = 0.0
) -> Plateau | None:
    """Return the plateau at the end of (step, value), if there is one.

    Args:
        since_step: where to begin anew, as at a change of the learning rate.
    """
    signed = [(step, -value if lower_is_better else value) for step, value in points]
    gains = [value for _, value in signed]
    recent = thinned([point for point in signed if point[0] > since_step])
    if len(recent) < LEAST:
        return None
    whole = max(gains) - gains[0]
    begin = len(recent) - max(LEAST, len(recent) // 4)
    if not _is_flat(recent[begin:], whole):
        return None
    step = max(1, len(recent) // 30)
    while begin > 0 and _is_flat(recent[max(0, begin - step) :], whole):
        begin = max(0, begin - step)
    flat = recent[_reached(recent[begin:], whole) + begin :]
    return Plateau(flat[0][0], len(flat), _gain(flat))


def _gain(points: Sequence[tuple[float, float]]) -> float:
    return slope(points) * (points[-1][0] - points[0][0])


def _reached(points: Sequence[tuple[float, float]], whole: float) -> int:
    """Return the index of the first point that is near to the newest ones."""
    gains = [gain for _, gain in points]
    level = median(gains[-LEAST:])
    near = level - max(2 * noise(gains), _TOO_LITTLE * whole)
    return next(i for i, gain in enumerate(gains) if gain >= near or i == len(gains) - LEAST)


def _is_flat(points: Sequence[tuple[float, float]], whole: float) -> bool:
    if trend([value for _, value in points]) < _SURE:
        return True
    return _gain(points) < _TOO_LITTLE * whole

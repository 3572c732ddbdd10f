"""Find whether a curve has stopped getting better, and since when. Pure.

The newest values since the last change of the learning rate are on a plateau if Mann-Kendall's test
finds no improvement among them, or if what Sen's slope promises over them is too little to matter
beside what the whole training has gained. The plateau began with the longest run of newest values
of which that is true, at its first value that comes as near to the newest ones as noise allows.

A node that looks again and again would sooner or later meet values that stand still by chance. So
an event, and the end of a training, need proof: half of the values, and confidence that they get
better by no more than a twentieth of the whole gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from dlctl.contract.measured.trend import highest_slope, noise, slope, thinned, trend

LEAST = 8
"""Fewer values tell nothing."""
_SURE = 1.64
"""One-sided, 5 %."""
_TOO_LITTLE = 0.01
"""Share of the whole gain."""
_PROVEN = 0.05
"""Share of the whole gain that a proven plateau does not exceed, with 95 % confidence."""
METHOD = "Mann-Kendall's test and Sen's slope over the newest values"


@dataclass(frozen=True)
class Plateau:
    """The newest values do not get better."""

    since_step: float
    values: int
    """How many of the values that were tested it spans."""
    gain: float
    """What Sen's slope promises over them; above 0 is better."""
    level: float
    """The median of the newest values, with its sign turned if lower values are better."""
    margin: float
    """What a level must exceed this one by to be better, and not only other noise."""


def find_plateau(
    points: Sequence[tuple[float, float]],
    lower_is_better: bool,
    since_step: float = 0.0,
    *,
    proven: bool = False,
) -> Plateau | None:
    """Return the plateau at the end of (step, value), if there is one.

    Args:
        since_step: where to begin anew, as at a change of the learning rate.
        proven: ask for proof, as the module says.
    """
    signed = [(step, -value if lower_is_better else value) for step, value in points]
    gains = [value for _, value in signed]
    recent = [point for point in signed if point[0] > since_step]
    return plateau_among(recent, max(gains) - gains[0], proven=proven) if recent else None


def plateau_among(
    points: Sequence[tuple[float, float]], whole: float, *, proven: bool = False
) -> Plateau | None:
    """Return the plateau at the end of (step, gain) since the learning rate changed, if any.

    Args:
        whole: what the training has gained from its first value to its best one.
    """
    recent = thinned(points)
    if len(recent) < LEAST:
        return None
    newest = _newest(recent, 2 if proven else 4)
    begin = len(recent) - len(newest)
    if not _is_flat(newest, whole):
        return None
    if proven and highest_slope(newest) * _width(newest) > _PROVEN * whole:
        return None
    step = max(1, len(recent) // 30)
    while begin > 0 and _is_flat(recent[max(0, begin - step) :], whole):
        begin = max(0, begin - step)
    gains = [gain for _, gain in recent[begin:]]
    margin = max(2 * noise(gains), _TOO_LITTLE * whole)
    level = median_of_newest(gains)
    flat = recent[begin + _reached(gains, level - margin) :]
    return Plateau(flat[0][0], len(flat), _gain(flat), level, margin)


def newest_slope(points: Sequence[tuple[float, float]]) -> float:
    """Return Sen's slope over the newest values, by which a plateau is looked for."""
    return slope(_newest(thinned(points), 4))


def stands_still(metric: str, since: float, unit: str = "step") -> str:
    """Return in words that a metric is on a plateau."""
    return f"{metric} has hardly improved since {unit} {since:.0f}"


def median_of_newest(gains: Sequence[float]) -> float:
    """Return the level of the newest values."""
    return median(gains[-LEAST:])


def _newest(points: Sequence[tuple[float, float]], part: int) -> Sequence[tuple[float, float]]:
    """Return the newest part of some points: a half, a quarter."""
    return points[len(points) - max(LEAST, len(points) // part) :]


def _width(points: Sequence[tuple[float, float]]) -> float:
    return points[-1][0] - points[0][0]


def _gain(points: Sequence[tuple[float, float]]) -> float:
    return slope(points) * _width(points)


def _reached(gains: Sequence[float], near: float) -> int:
    """Return the index of the first value that is near to the newest ones."""
    return next(i for i, gain in enumerate(gains) if gain >= near or i == len(gains) - LEAST)


def _is_flat(points: Sequence[tuple[float, float]], whole: float) -> bool:
    if trend([value for _, value in points]) < _SURE:
        return True
    return _gain(points) < _TOO_LITTLE * whole

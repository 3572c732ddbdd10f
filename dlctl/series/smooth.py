"""Smooth curves before they are thinned, so that what is drawn does not depend on the zoom.

The mean is exponential and starts without a bias: its sum is divided by that of the weights, as in
Adam's bias correction (Kingma and Ba, 2015, section 3). Values that are no number are left out.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dlctl.contract.metrics import Source
from dlctl.series.curve import Curve

if TYPE_CHECKING:
    from collections.abc import Hashable

_KEPT = 256
_UNITS = 1000


@dataclass(frozen=True)
class Smoothing:
    """How much to smooth, the same for all curves of a run, however many points each has."""

    factor: float
    """The share that the past keeps after one unit: from 0, which changes nothing, to below 1."""
    steps: float
    """The unit, for curves by step."""
    seconds: float
    """The unit, for curves that know only times."""


def make_smoothing(factor: float, steps: float, seconds: float) -> Smoothing:
    """Return the smoothing of a run of a length; a unit is about a thousandth of it.

    Units are powers of two, so that a run that grows is smoothed anew only when it has doubled.
    """
    return Smoothing(factor, _unit(steps), _unit(seconds))


def _unit(length: float) -> float:
    return 2.0 ** math.ceil(math.log2(length / _UNITS)) if length > 0 else 1.0


@dataclass
class _Smoothed:
    curve: Curve
    weight: float = 0.0
    """Of all values so far; below 1 at the beginning, where few values count."""
    sum: float = 0.0
    place: float = math.nan
    """Of the newest value: a step, or a time."""


@dataclass
class Smoother:
    """Keeps smoothed copies of curves, and adds to each what its curve has got meanwhile."""

    _kept: dict[Hashable, _Smoothed] = field(default_factory=dict)

    def smoothed(self, training_id: str, curve: Curve, how: Smoothing) -> Curve:
        """Return the exponential moving mean of a curve."""
        name = (training_id, curve.key, how)
        known = self._kept.pop(name, None)
        if known is None or not _begins_with(curve, known.curve):
            known = _Smoothed(Curve(curve.key))
        _go_on(known, curve, how)
        self._kept[name] = known  # the last one is the one that was used last
        while len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return known.curve


def _begins_with(curve: Curve, smoothed: Curve) -> bool:
    """Return whether a curve is longer than it was, and not another one: steps are done again."""
    old, new = smoothed.points, curve.points
    n = len(old)
    if n > len(new) or not n:
        return not n
    last = n - 1
    same = old.step_last[last] == new.step_last[last] and old.count[last] == new.count[last]
    return same and (old.time[last] == new.time[last] or math.isnan(old.time[last]))


def _go_on(known: _Smoothed, curve: Curve, how: Smoothing) -> None:
    old, new = known.curve.points, curve.points
    begin = len(old)
    by_time = curve.key.source == Source.NODE.value
    unit = how.seconds if by_time else how.steps
    places = new.time if by_time else new.step_last
    values = array("d")
    weight, sum_, place = known.weight, known.sum, known.place
    apart, kept = 0.0, 0.0
    for at, first, last in zip(places[begin:], new.first[begin:], new.last[begin:], strict=True):
        value = first / 2 + last / 2  # a bin tells no more about its mean
        if math.isfinite(value):
            if at - place != apart:  # true for the first one, whose `place` is NaN
                apart = at - place
                kept = how.factor ** (apart / unit) if apart > 0 else how.factor
            weight = kept * weight + 1 - kept
            sum_ = kept * sum_ + (1 - kept) * value
            place = at
        values.append(sum_ / weight if weight else math.nan)
    known.weight, known.sum, known.place = weight, sum_, place
    for name in ("step_first", "step_last", "step_low", "step_high", "time", "count"):
        getattr(old, name).extend(getattr(new, name)[begin:])
    for name in ("low", "high", "first", "last"):
        getattr(old, name).extend(values)

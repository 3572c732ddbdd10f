"""Smooth curves before they are thinned, so that what is drawn does not depend on the zoom."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dlctl.series import Curve

if TYPE_CHECKING:
    from collections.abc import Hashable

_KEPT = 256


@dataclass
class _Smoothed:
    curve: Curve
    weight: float = 0.0
    """Of all values so far; below 1 at the beginning, where few values count."""
    sum: float = 0.0


@dataclass
class Smoother:
    """Keeps smoothed copies of curves, and adds to each what its curve has got meanwhile."""

    _kept: dict[Hashable, _Smoothed] = field(default_factory=dict)

    def smoothed(self, training_id: str, curve: Curve, factor: float) -> Curve:
        """Return the exponential moving mean of a curve.

        Args:
            factor: from 0, which changes nothing, to below 1: the share that the past keeps at each
                point.
        """
        name = (training_id, curve.key, factor)
        known = self._kept.pop(name, None)
        if known is None or not _begins_with(curve, known.curve):
            known = _Smoothed(Curve(curve.key))
        self._kept[name] = known  # the last one is the one that was used last
        while len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        _go_on(known, curve, factor)
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


def _go_on(known: _Smoothed, curve: Curve, factor: float) -> None:
    old, new = known.curve.points, curve.points
    begin = len(old)
    values = array("d")
    weight, sum_ = known.weight, known.sum
    pairs = zip(new.count[begin:], new.first[begin:], new.last[begin:], strict=True)
    for count, first, last in pairs:
        value = (first + last) / 2  # a bin tells no more about its mean
        if math.isfinite(value):
            kept = factor if count == 1 else factor**count
            weight = kept * weight + 1 - kept
            sum_ = kept * sum_ + (1 - kept) * value
        values.append(sum_ / weight if weight else math.nan)
    known.weight, known.sum = weight, sum_
    for name in ("step_first", "step_last", "time", "count"):
        getattr(old, name).extend(getattr(new, name)[begin:])
    for name in ("low", "high", "first", "last"):
        getattr(old, name).extend(values)

"""Smooth a window of a curve by an exponential mean that does not depend on the zoom. Pure.

The mean begins long before the window. It starts without a bias: its sum is divided by that of the
weights, as in Adam's bias correction (Kingma and Ba, 2015, section 3). The saved page of the
dashboard does the same in `static/api.js`.
"""

from __future__ import annotations

import math
from bisect import bisect_left

from dlctl.contract.metrics import Source
from dlctl.series.curve import Columns, Curve

_UNITS = 1000
_BEFORE = 1000
"""The number of bins that stand for the points before the window."""


def smoothed(
    curve: Curve, factor: float, length: tuple[float, float], shown: Columns, *, by_time: bool
) -> list[float]:
    """Return the smoothed values of a window.

    Args:
        factor: the share that the past keeps after a thousandth of the run: from 0 to below 1.
        length: of the whole run, in steps and in seconds, so that all of its curves are smoothed
            alike, however many points each has.
        shown: the window, as `Curve.view` has returned it.
        by_time: whether the window is one of times.
    """
    measured_by_time = curve.key.source == Source.NODE.value
    unit = length[measured_by_time] / _UNITS or 1.0
    found: list[float] = []
    sum_, weight, place = 0.0, 0.0, math.nan
    for columns in (_before(curve, shown, by_time), shown):
        places = columns.time if measured_by_time else columns.step_last
        for at, value in zip(places, columns.mean, strict=True):
            if math.isfinite(value):
                kept = factor ** ((at - place) / unit) if at > place else factor
                sum_ = kept * sum_ + (1 - kept) * value
                weight = kept * weight + 1 - kept
                place = at
            if columns is shown:
                found.append(sum_ / weight if weight else math.nan)
    return found


def _before(curve: Curve, shown: Columns, by_time: bool) -> Columns:
    """Return what is before a window, in a few bins."""
    if not len(shown):
        return Columns()
    first = shown.time[0] if by_time else shown.step_first[0]
    found = curve.view(-math.inf, first, _BEFORE, by_time)
    found.cut(bisect_left(found.time if by_time else found.step_last, first))
    return found

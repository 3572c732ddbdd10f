"""Smooth a curve: an exponential mean that starts without a bias."""

from __future__ import annotations

import math

from dlctl.series.curve import Columns


def smoothed(columns: Columns, weight: float) -> Columns:
    """Return the curve's exponential mean, each bin weighted by the number of its points.

    The sum is divided by that of the weights, as in Adam's bias correction (Kingma and Ba, 2015,
    section 3). Values that are no number are left out.

    Args:
        weight: of what came before, per bin, from 0 to 1.
    """
    found = Columns()
    total = sum_of_weights = 0.0
    for bin_ in columns.bins():
        middle = (bin_.low + bin_.high) / 2 if bin_.count > 2 else (bin_.first + bin_.last) / 2
        if not math.isfinite(middle):
            continue
        total = weight * total + (1 - weight) * middle
        sum_of_weights = weight * sum_of_weights + (1 - weight)
        bin_.low = bin_.high = bin_.first = bin_.last = total / sum_of_weights
        found.append(bin_)
    return found

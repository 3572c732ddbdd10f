"""Find where the learning rate was changed by a step, and not by a schedule at every step."""

from __future__ import annotations

from dataclasses import dataclass

from dlctl.contract.metrics import LEARNING_RATE
from dlctl.series.run import Run

_NAMES = (LEARNING_RATE, "lr")
_LEAST = 0.05
"""A smaller relative change is none."""
_OFTEN = 0.2
"""If a larger share of the neighbours differs, a schedule changes the rate all the time."""


@dataclass(frozen=True)
class RateChange:
    """A change of the learning rate."""

    step: float
    """The last step before the first measurement with the new rate."""
    before: float
    after: float


def rate_changes(run: Run) -> list[RateChange]:
    """Return the changes in their order; none if the rate changes all the time."""
    curves = [curve for name in _NAMES for curve in run.named(name) if curve.key.learner == 0]
    if not curves:
        return []
    points = curves[0].values()
    pairs = list(zip(points, points[1:], strict=False))
    moved = [(a, b) for a, b in pairs if abs(b[1] - a[1]) > 1e-9 * abs(a[1])]
    if len(moved) > 2 and len(moved) > _OFTEN * len(pairs):
        return []
    return [RateChange(a[0], a[1], b[1]) for a, b in moved if abs(b[1] - a[1]) > _LEAST * abs(a[1])]

"""How long a training will still take, with an interval, from the pace of its last steps. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import quantiles

from dlctl.contract.metrics import NO_STEP, Source
from dlctl.series.run import Run

_NEWEST = 50
"""Intervals between measurements."""
_LEAST = 3


@dataclass(frozen=True)
class TimeLeft:
    """Seconds until the last step, if the learners go on like this; the queue is not counted."""

    low_s: float
    middle_s: float
    high_s: float
    """Nine of ten of the last intervals were between the paces of `low_s` and `high_s`."""


def time_left(run: Run, step: int | None, done: float | None) -> TimeLeft | None:
    """Return how long the training will take; None if nobody can tell yet.

    Args:
        step: a step that was reached.
        done: the share of all steps that were done then, from 0 to 1.
    """
    if not done or done >= 1 or not step:
        return None
    paces = _paces(run)
    if len(paces) < _LEAST:
        return None
    left = max(0.0, step / done - max(step, run.last_step))
    cuts = quantiles(paces, n=20, method="inclusive")
    return TimeLeft(left * cuts[0], left * cuts[9], left * cuts[18])


def _paces(run: Run) -> list[float]:
    """Return seconds for a step, of the newest intervals of the curve with the most points."""
    curves = [c for k, c in run.curves.items() if k.source != Source.NODE.value and k.learner == 0]
    longest = max(curves, key=len, default=None)
    if longest is None:
        return []
    steps, times = longest.points.step_last[-_NEWEST:], longest.points.time[-_NEWEST:]
    rows = list(zip(steps, times, strict=True))
    return [
        (b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(rows, rows[1:], strict=False)
        if b[0] > a[0] >= 0 and b[1] >= a[1] and a[0] != NO_STEP
    ]  # fmt: skip

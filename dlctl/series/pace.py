"""How long a training will still take, with an interval, from the pace of its last steps. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from dlctl.contract.metrics import NO_STEP, Source
from dlctl.series.run import Run

_NEWEST = 120
"""Measurements that are looked at."""
_PARTS = 6
"""Their span is divided into so many, each with a pace of its own."""
_LEAST = 3


@dataclass(frozen=True)
class TimeLeft:
    """Seconds until the last step, if the learners go on like this; the queue is not counted."""

    low_s: float
    middle_s: float
    high_s: float
    """`low_s` and `high_s` follow from the fastest and the slowest stretch of the newest steps."""


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
    return TimeLeft(left * min(paces), left * median(paces), left * max(paces))


def _paces(run: Run) -> list[float]:
    """Return seconds for a step, of stretches of the curve with the most points."""
    curves = [c for k, c in run.curves.items() if k.source != Source.NODE.value and k.learner == 0]
    longest = max(curves, key=len, default=None)
    if longest is None:
        return []
    steps, times = longest.points.step_last[-_NEWEST:], longest.points.time[-_NEWEST:]
    began_at = max((a.began_at or 0.0 for a in run.attempts), default=0.0)  # before: the queue
    rows = [
        (s, t) for s, t in zip(steps, times, strict=True) if s != NO_STEP and t >= began_at
    ]  # fmt: skip
    places = sorted({i * (len(rows) - 1) // _PARTS for i in range(_PARTS + 1)}) if rows else []
    ends = [rows[i] for i in places]
    return [
        (b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(ends, ends[1:], strict=False)
        if b[0] > a[0] and b[1] >= a[1]
    ]  # fmt: skip

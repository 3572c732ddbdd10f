"""Estimate the progress of a training, and the time left, with an interval. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, Protocol

from dlctl.contract.metrics import LOSS, NO_STEP, EventKind, Source
from dlctl.series.curve import Curve
from dlctl.series.run import Run
from dlctl.units import format_span

_NEWEST = 120
"""Measurements that are looked at."""
_PARTS = 6
"""Their span is divided into so many, each with a pace of its own."""
_LEAST = 3
_LIMIT = "time limit"
"""In the words of a verdict after which the queue decides when it goes on."""


_ALMOST = 0.999
"""Only a learner says that all is done."""


class Progress(NamedTuple):
    """The progress of a training; None: not known."""

    epoch: int | None
    step: int | None
    done: float | None
    """The share of all steps, from 0 to 1."""
    loss: float | None = None
    """The newest."""


class ReportedProgress(Protocol):
    """The progress that learners have reported, such as a record."""

    @property
    def epoch(self) -> int | None: ...  # noqa: D102
    @property
    def step(self) -> int | None: ...  # noqa: D102
    @property
    def done(self) -> float | None: ...  # noqa: D102
    @property
    def loss(self) -> float | None: ...  # noqa: D102


def progress(run: Run | None, reported: ReportedProgress) -> Progress:
    """Return what a learner has told last, brought forward to the newest step of its metrics.

    Learners tell how far they are every few seconds, while metrics come with each step.
    """
    newest, step = NO_STEP if run is None else run.last_step, reported.step
    loss = reported.loss
    if run is not None and (curve := loss_curve(run)) is not None and math.isfinite(curve.last):
        loss = curve.last
    if run is None or newest == NO_STEP or (step is not None and newest <= step):
        return Progress(reported.epoch, step, reported.done, loss)
    if run.step_word == "epoch":
        return Progress(max(newest, reported.epoch or 0), step, reported.done, loss)
    epoch, then, done = run.epoch_at(newest), reported.epoch, reported.done
    return Progress(
        then if then is None or math.isnan(epoch) else max(then, int(epoch)),
        newest,
        done if done is None or done >= 1 or not step else min(_ALMOST, done * newest / step),
        loss,
    )


def loss_curve(run: Run) -> Curve | None:
    """Return the loss that stands for a training: of its first learner, the longest curve."""
    # Without sorting: there may be a million names.
    losses = [c for k, c in run.curves.items()
              if k.name == LOSS and k.source != Source.NODE.value and len(c)]  # fmt: skip
    return min(losses, key=lambda curve: (curve.key.learner, -len(curve)), default=None)


@dataclass(frozen=True)
class TimeLeft:
    """Seconds until the last step, if the learners and the queue go on like this."""

    low_s: float
    middle_s: float
    high_s: float
    """`low_s` and `high_s` follow from the fastest and the slowest stretch of the newest steps, and
    from the shortest and the longest wait in the queue."""
    jobs: int = 0
    """The number of further jobs, because of the time limit of each."""
    queue_s: float | None = None
    """The part of `middle_s` in the queue; None if no earlier attempt has waited there."""

    @property
    def text(self) -> str:
        """Return it in words, such as `2 h 10 min to 3 h left, of which 40 min in the queue`."""
        low, high = _span(self.low_s), _span(self.high_s)
        words = f"about {low} left" if low == high else f"{low} to {high} left"
        if not self.jobs:
            return words
        if self.queue_s is not None:
            return f"{words}, of which {_span(self.queue_s)} in the queue"
        more = "1 more job" if self.jobs == 1 else f"{self.jobs} more jobs"
        return f"{words}, and the wait for {more} in the queue"


@dataclass(frozen=True)
class JobLimit:
    """The time that a job may train."""

    each_s: float
    """From its begin until it saves before its time limit."""
    left_s: float
    """The rest of that in the present job."""


def time_left(
    run: Run, step: int | None, done: float | None, limit: JobLimit | None = None
) -> TimeLeft | None:
    """Return how long the training will take; None if nobody can tell yet.

    Args:
        step: a step that was reached.
        done: the share of all steps that were done then, from 0 to 1.
        limit: of its jobs, if there is one; what follows waits in the queue as attempts before did.
    """
    if not done or done >= 1 or not step:
        return None
    paces = _paces(run)
    if len(paces) < _LEAST:
        return None
    steps = max(0.0, step / done - max(step, run.last_step))
    low_s, middle_s, high_s = (steps * pace for pace in (min(paces), median(paces), max(paces)))
    jobs = _jobs(middle_s, limit)
    waits = queue_waits(run)
    if not waits or not _jobs(high_s, limit):
        return TimeLeft(low_s, middle_s, high_s, jobs)
    queue_s = jobs * median(waits)
    return TimeLeft(
        low_s + _jobs(low_s, limit) * min(waits), middle_s + queue_s,
        high_s + _jobs(high_s, limit) * max(waits), jobs, queue_s,
    )  # fmt: skip


def _jobs(training_s: float, limit: JobLimit | None) -> int:
    """Return how many more jobs a training needs that takes so long."""
    if limit is None or limit.each_s <= 0 or training_s <= limit.left_s:
        return 0
    return math.ceil((training_s - max(0.0, limit.left_s)) / limit.each_s)


def queue_waits(run: Run) -> list[float]:
    """Return the seconds from each end at a time limit to the begin of the next attempt.

    The wait after a person's halt is left out: it is that person's.
    """
    begins = {span.attempt: span.began_at for span in run.attempts}
    ends = [e for e in run.events if e.kind == EventKind.VERDICT.value and _LIMIT in e.text]
    found = []
    for end in ends:
        begin = begins.get(end.attempt + 1)
        if begin is not None and end.time is not None and begin >= end.time:
            found.append(begin - end.time)
    return found


def _span(duration_s: float) -> str:
    """Return a duration of two units at most, such as `3 h 10 min`."""
    minutes = round(duration_s / 60)
    if duration_s < 90 or minutes >= 36 * 60 or minutes < 90:
        return format_span(duration_s)
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


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

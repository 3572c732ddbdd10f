"""Where things lie on the x axis of a chart: by step, by epoch, or by time."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dlctl.contract.metrics import NO_STEP, Source

if TYPE_CHECKING:
    from dlctl.series import Columns, Curve, Run

KINDS = ("step", "epoch", "time")
_KNOTS = 2000


@dataclass
class Axis:
    """The x axis of a run's charts. `time` counts seconds from the beginning of the training."""

    run: Run
    kind: str
    start: float = 0.0
    """Unix seconds; 0 without any time."""
    first_step: float = 0.0
    """Of what was trained."""
    _steps: list[float] = field(default_factory=list)
    _times: list[float] = field(default_factory=list)
    """Of the same moments, both growing."""

    @property
    def span(self) -> tuple[float, float]:
        """Return the first and the last x of what was trained."""
        if self.kind == "time":
            return 0.0, self.seconds
        first = self.first_step
        return self._of_step(first), self._of_step(max(self.run.last_step, first))

    @property
    def is_known(self) -> bool:
        """Return whether anything has a place on this axis; not every program counts epochs."""
        return self.kind != "epoch" or not math.isnan(self.run.epoch_at(0))

    @property
    def seconds(self) -> float:
        """Return from the beginning to the newest measurement."""
        return max(self._times, default=self.start) - self.start

    def window(self, curve: Curve, begin: float, end: float) -> tuple[float, float, bool]:
        """Return what `Curve.view` needs for a window: begin, end, and whether they are times."""
        if self.kind == "time":
            return begin + self.start, end + self.start, True
        begin, end = self._to_step(begin), self._to_step(end)
        if curve.key.source == Source.NODE.value:
            return self._time_of(begin), self._time_of(end), True
        return begin, end, False

    def places(self, curve: Curve, columns: Columns) -> list[float]:
        """Return x of each column, never falling."""
        if self.kind == "time":
            found = [time - self.start for time in columns.time]
        elif curve.key.source == Source.NODE.value:  # measured without knowing the step
            found = [self._of_step(self._step_at(time)) for time in columns.time]
        else:
            pairs = zip(columns.step_first, columns.step_last, strict=True)
            found = [self._of_step((first + last) / 2) for first, last in pairs]
        newest = -math.inf
        for index, x in enumerate(found):
            found[index] = newest = max(newest, x) if x == x else newest
        return found

    def place(self, step: float, time: float | None) -> float | None:
        """Return x of something that happened; None if that is not known."""
        if self.kind == "time":
            if time is None and step != NO_STEP and self._steps:
                time = self._time_of(step)
            return None if time is None else time - self.start
        if step == NO_STEP:
            if time is None or not self._times:
                return None
            step = self._step_at(time)
        return self._of_step(step)

    def steps(self, begin: float, end: float) -> tuple[float, float]:
        """Return the steps of a window."""
        if self.kind != "time":
            return self._to_step(begin), self._to_step(end)
        ends = [x if math.isinf(x) else self._step_at(x + self.start) for x in (begin, end)]
        return ends[0], ends[1]

    def _of_step(self, step: float) -> float:
        if self.kind != "epoch":
            return step
        epoch = self.run.epoch_at(step)
        return epoch if epoch == epoch else 0.0

    def _to_step(self, x: float) -> float:
        if self.kind != "epoch" or math.isinf(x):
            return x
        low, high = 0.0, float(max(self.run.last_step, 0))
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self._of_step(middle) < x else (low, middle)
        return high

    def _time_of(self, step: float) -> float:
        return step if math.isinf(step) else _between(self._steps, self._times, step)

    def _step_at(self, time: float) -> float:
        return _between(self._times, self._steps, time)


def make_axis(run: Run, kind: str) -> Axis:
    """Return the axis of a run."""
    trained = [c for key, c in run.curves.items() if key.source != Source.NODE.value and len(c)]
    axis = Axis(run, kind)
    if trained:
        steps = (curve.points.step_first[0] for curve in trained)
        axis.first_step = min((step for step in steps if step != NO_STEP), default=0.0)
        longest = max(trained, key=len)
        columns = longest.view(-math.inf, math.inf, _KNOTS)
        newest = (-math.inf, -math.inf)
        for pair in zip(columns.step_last, columns.time, strict=True):
            if pair[0] >= newest[0] and pair[1] >= newest[1]:  # false for an unknown time
                axis._steps.append(pair[0])
                axis._times.append(pair[1])
                newest = pair
    starts = [span.began_at for span in run.attempts if span.began_at] + axis._times[:1]
    axis.start = min(starts, default=_first_time(run))
    return axis


def _first_time(run: Run) -> float:
    times = (curve.points.time[0] for curve in run.curves.values() if len(curve))
    return min((time for time in times if time == time), default=0.0)


def _between(from_: list[float], to: list[float], value: float) -> float:
    """Return the number that corresponds to a value, by proportion between two known ones."""
    if not from_:
        return math.nan
    after = bisect_left(from_, value)
    if after == 0:
        return to[0]
    if after == len(from_):
        return to[-1]
    before = after - 1
    width = from_[after] - from_[before]
    share = (value - from_[before]) / width if width > 0 else 1.0
    return to[before] + share * (to[after] - to[before])

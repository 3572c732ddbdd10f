"""Turn a run into the columns that the page draws, by step, by epoch, or by time."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dlctl.contract.measured.judged_series import is_better_lower
from dlctl.contract.metrics import NO_STEP, EventKind, Source
from dlctl.series.answers import found_events
from dlctl.series.curve import smoothed
from dlctl.units import natural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dlctl.series import Columns, Curve, Event, Run

Json = dict[str, Any]
KINDS = ("step", "epoch", "time")
_KNOTS = 2000
MOST_CURVES = 240
"""A page of more is no use to anybody; `find` chooses others."""
_MOST_NAMES = 2000
_MOST_EVENTS = 500
_FIRST = ("loss", "accuracy", "error", "perplexity", "learning_rate", "samples_per_s", "step_s",
          "gpu0_percent", "cpu_percent", "gpu0_memory", "memory_rss")  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """A page's request."""

    kind: str = "step"
    begin: float = -math.inf
    end: float = math.inf
    width: int = 800
    """The chart's width in pixels."""
    smooth: float = 0.0
    names: tuple[str, ...] = ()
    """Only these metrics; all if empty."""
    find: str = ""
    """A regular expression: only metrics whose name it finds. What is none is plain text."""


def parse_wanted(query: Mapping[str, str], names: Iterable[str] = ()) -> Wanted:
    """Return what a URL asks for.

    Raises:
        ValueError: it can't be understood.
    """
    kind = query.get("x", "step")
    if kind not in KINDS:
        raise ValueError(f"x is one of {', '.join(KINDS)}")
    begin, end = float(query.get("from", "-inf")), float(query.get("to", "inf"))
    smooth = float(query.get("smooth", "0"))
    if math.isnan(begin) or math.isnan(end) or not 0 <= smooth < 1:
        raise ValueError("from and to are numbers, smooth is a number from 0 to below 1")
    width = min(4000, max(10, int(query.get("width", "800"))))
    return Wanted(kind, begin, end, width, smooth, tuple(names), query.get("find", ""))


def wanted_steps(run: Run, wanted: Wanted) -> tuple[float, float]:
    """Return the window of steps that a page asks for."""
    return make_axis(run, wanted.kind).steps(wanted.begin, wanted.end)


def curves(run: Run, wanted: Wanted) -> Json:
    """Return the columns of all wanted curves in a window, with events and attempts."""
    axis = make_axis(run, wanted.kind)
    known = sorted((c for c in run.curves.values() if len(c)), key=_importance)
    problem = "This training counts no epochs." if known and not axis.is_known else ""
    find = _pattern(wanted.find)
    chosen = [] if problem else [curve for curve in known if _is_wanted(curve, wanted, find)]
    names = sorted({curve.key.name for curve in known})
    events = [*run.events, *found_events(run)]
    return {
        "x": wanted.kind, "step_word": run.step_word, "span": list(axis.span), "start": axis.start,
        "problem": problem, "names": names[:_MOST_NAMES],
        "total": len(known), "fitting": len(chosen),
        "curves": [_drawn(run, axis, c, wanted) for c in chosen[:MOST_CURVES]],
        "events": [_event(run, axis, event) for event in events[-_MOST_EVENTS:]],
        "attempts": _attempts(run, axis),
    }  # fmt: skip


def _pattern(find: str) -> re.Pattern[str]:
    try:
        return re.compile(find, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError):
        return re.compile(re.escape(find), re.IGNORECASE)


def _is_wanted(curve: Curve, wanted: Wanted, find: re.Pattern[str]) -> bool:
    if wanted.names and curve.key.name not in wanted.names:
        return False
    return find.search(curve.key.shown) is not None


def _importance(curve: Curve) -> tuple[Any, ...]:
    key = curve.key
    place = next((n for n, word in enumerate(_FIRST) if word in key.name), len(_FIRST))
    return (
        key.source == Source.NODE.value,
        place,
        natural(key.name),
        key.learner,
        key.group,
        key.source,
    )


def _drawn(run: Run, axis: Axis, curve: Curve, wanted: Wanted) -> Json:
    window = axis.window(curve, wanted.begin, wanted.end)
    columns = curve.view(window[0], window[1], wanted.width, window[2])
    key = curve.key
    found: Json = {
        "source": key.source, "learner": key.learner, "group": key.group, "name": key.name,
        "shown": key.shown, "count": len(curve), "newest": plain([curve.last])[0],
        "x": plain(axis.places(curve, columns)), "last": plain(columns.last),
    }  # fmt: skip
    if key.source != Source.NODE.value:
        found["better"] = {True: "lower", False: "higher", None: None}[is_better_lower(key.name)]
    if (ends := curve.ends()) is not None:
        found["ends"] = {name: plain(point) for name, point in vars(ends).items()}
    if any(count > 1 for count in columns.count):  # otherwise all four are equal
        for name in ("low", "high", "first"):
            found[name] = plain(getattr(columns, name))
    if wanted.smooth:
        length = run.last_step, axis.seconds
        found["smooth"] = plain(smoothed(curve, wanted.smooth, length, columns, by_time=window[2]))
    return found


def plain(values: Iterable[float]) -> list[float | None]:
    """Return numbers for JSON, which knows neither NaN nor infinity."""
    return [value if math.isfinite(value) else None for value in values]


def _event(run: Run, axis: Axis, event: Event) -> Json:
    step = event.step
    if event.kind == EventKind.VERDICT.value:  # steps that were done again are of a later attempt
        later = (a.first_step for a in run.attempts if a.attempt > event.attempt)
        step = min((step, *later))
    x = axis.place(step, event.time)
    return {
        "attempt": event.attempt, "step": event.step, "time": event.time, "kind": event.kind,
        "text": event.text, "values": event.values, "x": x,
    }  # fmt: skip


def _attempts(run: Run, axis: Axis) -> list[Json]:
    """Return where each attempt lies; by step, an attempt ends where the next one goes on."""
    found = []
    for number, span in enumerate(run.attempts):
        later = run.attempts[number + 1] if number + 1 < len(run.attempts) else None
        end = later and axis.place(later.first_step, span.ended_at or later.began_at)
        if axis.kind == "time" and span.ended_at:
            end = span.ended_at - axis.start
        found.append({
            "attempt": span.attempt, "state": span.state, "first_step": span.first_step,
            "began_at": span.began_at, "ended_at": span.ended_at,
            "begin": axis.place(span.first_step, span.began_at), "end": end,
        })  # fmt: skip
    return found


def spark(columns: Columns) -> list[float | None]:
    """Return the few numbers that a spark line draws: the lowest and highest of each column."""
    pairs = zip(columns.low, columns.high, strict=True)
    return plain(value for pair in pairs for value in (pair if pair[0] != pair[1] else pair[:1]))


# Where things lie on the x axis ------------------------------------------------------------------


@dataclass
class Axis:
    """The x axis of a run's charts. `time` counts seconds from the beginning of the training."""

    run: Run
    kind: str
    start: float = 0.0
    """Unix seconds; 0 without any time."""
    first_step: float = 0.0
    """The first step that was trained."""
    _steps: list[float] = field(default_factory=list)
    _times: list[float] = field(default_factory=list)
    """Times of the same moments; both lists grow."""

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

"""Turn a run into the columns that the page draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlctl.contract.metrics import EventKind, Source
from dlctl.dashboard.axis import KINDS, Axis, make_axis
from dlctl.series.found import found_events
from dlctl.series.smooth import Smoother, make_smoothing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dlctl.series import Columns, Curve, Event, Run

Json = dict[str, Any]
MOST_CURVES = 240
"""A page of more is no use to anybody; `find` chooses others."""
_MOST_NAMES = 2000
_MOST_EVENTS = 500
_FIRST = ("loss", "accuracy", "error", "perplexity", "learning_rate", "samples_per_s", "step_s",
          "gpu0_percent", "cpu_percent", "gpu0_memory", "memory_rss")  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """What a page asks for."""

    kind: str = "step"
    begin: float = -math.inf
    end: float = math.inf
    width: int = 800
    """Of the chart, in columns of pixels."""
    smooth: float = 0.0
    names: tuple[str, ...] = ()
    """Only these metrics; all if empty."""
    find: str = ""
    """Only metrics whose name contains this."""


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
    return Wanted(kind, begin, end, width, smooth, tuple(names), query.get("find", "").lower())


def wanted_steps(run: Run, wanted: Wanted) -> tuple[float, float]:
    """Return the window of steps that a page asks for."""
    return make_axis(run, wanted.kind).steps(wanted.begin, wanted.end)


def curves(run: Run, wanted: Wanted, smoother: Smoother) -> Json:
    """Return the columns of all wanted curves in a window, with events and attempts."""
    axis = make_axis(run, wanted.kind)
    known = sorted((c for c in run.curves.values() if len(c)), key=_importance)
    problem = "This training counts no epochs." if known and not axis.is_known else ""
    chosen = [] if problem else [curve for curve in known if _is_wanted(curve, wanted)]
    names = sorted({curve.key.name for curve in known})
    events = [*run.events, *found_events(run)]
    return {
        "x": wanted.kind, "span": list(axis.span), "start": axis.start,
        "problem": problem, "names": names[:_MOST_NAMES],
        "total": len(known), "fitting": len(chosen),
        "curves": [_drawn(run, axis, c, wanted, smoother) for c in chosen[:MOST_CURVES]],
        "events": [_event(run, axis, event) for event in events[-_MOST_EVENTS:]],
        "attempts": _attempts(run, axis),
    }  # fmt: skip


def _is_wanted(curve: Curve, wanted: Wanted) -> bool:
    if wanted.names and curve.key.name not in wanted.names:
        return False
    return wanted.find in curve.key.shown.lower()


def _importance(curve: Curve) -> tuple[Any, ...]:
    key = curve.key
    place = next((n for n, word in enumerate(_FIRST) if word in key.name), len(_FIRST))
    return key.source == Source.NODE.value, place, key.name, key.learner, key.group, key.source


def _drawn(run: Run, axis: Axis, curve: Curve, wanted: Wanted, smoother: Smoother) -> Json:
    window = axis.window(curve, wanted.begin, wanted.end)
    columns = curve.view(window[0], window[1], wanted.width, window[2])
    key = curve.key
    found: Json = {
        "source": key.source, "learner": key.learner, "group": key.group, "name": key.name,
        "shown": key.shown, "count": len(curve), "newest": plain([curve.last])[0],
        "x": plain(axis.places(curve, columns)), "last": plain(columns.last),
    }  # fmt: skip
    if (ends := curve.ends()) is not None:
        found["ends"] = {name: plain(point) for name, point in vars(ends).items()}
    if any(count > 1 for count in columns.count):  # otherwise all four are equal
        for name in ("low", "high", "first"):
            found[name] = plain(getattr(columns, name))
    if wanted.smooth:
        how = make_smoothing(wanted.smooth, run.last_step, axis.seconds)
        smooth = smoother.smoothed(run.training_id, curve, how)
        found["smooth"] = plain(smooth.view(window[0], window[1], wanted.width, window[2]).last)
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

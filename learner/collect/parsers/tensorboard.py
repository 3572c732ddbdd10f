"""TensorBoard's events: scalars, and summaries of histograms."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from dlctl.contract.ground import protobuf as pb
from dlctl.contract.ground.protobuf import BrokenFile, records
from dlctl.contract.metrics import SUBID, MetricsLine
from learner.collect.parsers.record import ITERATION, TIMES, Draft, Kind

_FORMS = {1: "f", 2: "d", 3: "i", 4: "B", 5: "h", 6: "b", 9: "q", 19: "e", 22: "I", 23: "Q"}
"""Numbers of TensorFlow's types, with the letters of `struct`."""
_VALUE_FIELDS = {5: "f", 6: "d", 7: "v", 10: "v", 11: "v"}
_HISTOGRAMS = "histograms"
_MOST_KEPT = 1000
"""Tags in the state of a collector."""
_NOT_NUMBERS = ("images", "audio", "text", "pr_curves", "hparams", "mesh", "graphs")
_HALF = 0.5


@dataclass
class _Tensor:
    """A tensor's content, as far as numbers go."""

    dtype: int = 0
    shape: list[int] = field(default_factory=list)
    content: bytes = b""
    values: list[float] = field(default_factory=list)

    def numbers(self) -> list[float]:
        form = _FORMS.get(self.dtype)
        if not self.content or form is None or len(self.content) % struct.calcsize(form):
            return self.values
        count = len(self.content) // struct.calcsize(form)
        return [float(n) for n in struct.unpack(f"<{count}{form}", self.content)]


@dataclass
class _Event:
    """One event: a step, a time, and values by tag."""

    wall_time: float = 0.0
    step: int = 0
    values: dict[str, float] = field(default_factory=dict)


class EventParser:
    """Turns the records of one event file into lines; one line for each run of equal steps.

    Args:
        subid: which of several runs the file belongs to.
    """

    def __init__(self, group: str, subid: str = "") -> None:
        self._group = group
        self._subid = subid
        self._plugins: dict[str, str] = {}
        """By tag: only a tag's first value has to name its kind."""

    def feed(self, data: bytes) -> tuple[list[MetricsLine], int]:
        """Return the records of the whole events at the beginning, and how many bytes they take.

        An event that does not fit into `data` takes more than there are, and is left out.

        Raises:
            BrokenFile: what comes next is no event.
        """
        events: list[_Event] = []
        used = 0
        try:
            for record, end in records(data):
                used = end
                event = None if record is None else self._event(record)
                if event is not None and event.values:
                    _append(event, events)
        except BrokenFile:
            if used == 0:  # otherwise the next call finds it
                raise
        lines = (self._line(event) for event in events)
        return [line for line in lines if line is not None], used

    def memory(self) -> list[str]:
        """Return the tags of histograms; without their kind later values say nothing."""
        return [tag for tag, plugin in self._plugins.items() if plugin == _HISTOGRAMS][:_MOST_KEPT]

    def remember(self, tags: object) -> None:
        """Take the tags of histograms that an earlier parser of this file knew."""
        for tag in tags if isinstance(tags, list) else []:
            self._plugins[str(tag)] = _HISTOGRAMS

    def _line(self, event: _Event) -> MetricsLine | None:
        draft = Draft(self._group)
        draft.axis(ITERATION, Kind.INT, event.step)
        draft.axis(TIMES[0], Kind.FLOAT, event.wall_time)
        draft.text(SUBID, self._subid)
        for tag, value in event.values.items():
            draft.value(tag, Kind.FLOAT, value)
        return draft.line()

    def _event(self, data: memoryview) -> _Event | None:
        """Return an event; None if it is broken: the next one may be whole."""
        event = _Event()
        try:
            for number, _, value in pb.fields(data):
                if number == 1:
                    event.wall_time = pb.double(value)
                elif number == 2 and isinstance(value, int):
                    event.step = pb.signed(value)
                elif number == 5:
                    for inner, _, summary in pb.fields(pb.message(value)):
                        if inner == 1:
                            self._value(pb.message(summary), event.values)
        except pb.Malformed:
            return None
        return event

    def _value(self, data: memoryview, values: dict[str, float]) -> None:
        tag, plugin = "", ""
        simple: float | None = None
        histogram: memoryview | None = None
        tensor: memoryview | None = None
        for number, _, value in pb.fields(data):
            if number == 1:
                tag = pb.text(value)
            elif number == 2:
                simple = pb.single(value)
            elif number == 5:
                histogram = pb.message(value)
            elif number == 8:
                tensor = pb.message(value)
            elif number == 9:
                plugin = _plugin(pb.message(value))
        plugin = self._remember(tag, plugin)
        if simple is not None:
            values[tag] = simple
        elif histogram is not None:
            values |= _named(tag, _histogram(histogram))
        elif tensor is not None and plugin not in _NOT_NUMBERS:
            found = _tensor(tensor)
            if plugin == _HISTOGRAMS:
                values |= _named(tag, _of_buckets(found))
            elif len(numbers := found.numbers()) == 1 and math.prod(found.shape) == 1:
                values[tag] = numbers[0]

    def _remember(self, tag: str, plugin: str) -> str:
        if plugin and len(self._plugins) < 100_000:
            self._plugins[tag] = plugin
        return plugin or self._plugins.get(tag, "")


def _append(event: _Event, events: list[_Event]) -> None:
    """Append an event, or put its values into the last one if that has the same step."""
    last = events[-1] if events else None
    if last is None or last.step != event.step or last.values.keys() & event.values.keys():
        events.append(event)
    else:
        last.values |= event.values
        last.wall_time = event.wall_time


def _named(tag: str, summary: dict[str, float]) -> dict[str, float]:
    return {f"{tag}/{name}": value for name, value in summary.items()}


def _plugin(metadata: memoryview) -> str:
    for number, _, value in pb.fields(metadata):
        if number == 1:
            for inner, _, name in pb.fields(pb.message(value)):
                if inner == 1:
                    return pb.text(name)
    return ""


def _tensor(data: memoryview) -> _Tensor:
    found = _Tensor()
    for number, _, value in pb.fields(data):
        if number == 1 and isinstance(value, int):
            found.dtype = value
        elif number == 2:
            found.shape = _shape(pb.message(value))
        elif number == 4:
            found.content = bytes(pb.message(value))
        elif number in _VALUE_FIELDS:
            found.values += pb.numbers(value, _VALUE_FIELDS[number])
    return found


def _shape(data: memoryview) -> list[int]:
    sizes = []
    for number, _, value in pb.fields(data):
        if number == 2:
            size = 0
            for inner, _, given in pb.fields(pb.message(value)):
                if inner == 1 and isinstance(given, int):
                    size = given
            sizes.append(size)
    return sizes


def _histogram(data: memoryview) -> dict[str, float]:
    """Return the summary of TensorBoard's older histograms, which is in the file."""
    given = {number: pb.double(value) for number, wire, value in pb.fields(data)
             if number <= 5 and wire == pb.FIXED64}  # fmt: skip
    count = given.get(3, 0.0)
    if not count > 0:
        return {"count": 0.0}
    mean = given.get(4, 0.0) / count
    spread = given.get(5, 0.0) / count - mean * mean
    return {
        "min": given.get(1, 0.0), "max": given.get(2, 0.0), "mean": mean,
        "std": math.sqrt(max(0.0, spread)), "count": count,
    }  # fmt: skip


def _of_buckets(tensor: _Tensor) -> dict[str, float]:
    """Return the summary of the newer histograms: rows of left edge, right edge, count."""
    flat = tensor.numbers()
    rows = [flat[i : i + 3] for i in range(0, len(flat) - 2, 3)]
    rows = [row for row in rows if row[2] > 0]
    count = sum(row[2] for row in rows)
    if not rows or not count > 0:
        return {"count": 0.0}
    middles: Sequence[tuple[float, float]] = [((r[0] + r[1]) * _HALF, r[2]) for r in rows]
    mean = sum(middle * n for middle, n in middles) / count
    spread = sum((middle - mean) ** 2 * n for middle, n in middles) / count
    return {
        "min": rows[0][0], "max": rows[-1][1], "mean": mean, "std": math.sqrt(spread),
        "count": count,
    }  # fmt: skip

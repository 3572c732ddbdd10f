"""Bins of a long file of metrics: its curves are drawn from few numbers, and no spike is lost.

Beside `X.jsonl` stands `X.bins`, once that is worth it. Each of its lines is a `Stretch`, which
covers the next lines of `X.jsonl`. Once there are `MOST_STRETCHES`, old neighbours are joined.

No such file is beside one in which a series goes back to an earlier step, or in which
`LEAST_STRETCHES` have too many series: lines alone tell what counts there.
"""

from __future__ import annotations

import json
import math
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING

from dlctl.contract.ground.safe_text import without_suffix
from dlctl.contract.metrics import NO_STEP, MetricsLine, parse_lines

if TYPE_CHECKING:
    from typing import TypeAlias


FROM_BYTES = 400_000
"""A smaller file of metrics has no bins: it is read whole."""
LEAST_STRETCHES, MOST_STRETCHES = 20, 640
USUAL_BYTES, MOST_BYTES = 4 * 1024 * 1024, 32 * 1024 * 1024
"""The size of `X.bins` from which on stretches are joined, down to `LEAST_STRETCHES`; its limit."""
LEAST_LINES = 16
"""Lines of a stretch in a file that has just begun to have bins."""

Series: TypeAlias = "tuple[str, str]"
"""The group and the name of values."""


@dataclass
class Bin:
    """Successive points of a series."""

    count: int
    step_first: float
    """The step of the first value that is a number, if any is."""
    step_last: float
    time_last: float
    """Unix seconds; NaN if unknown."""
    low: float
    """NaN, like `high`, `first` and `mean`, if all values are."""
    high: float
    first: float
    last: float
    step_low: float
    """Where the value was `low` first."""
    step_high: float
    mean: float

    def add(self, later: Bin) -> None:
        """Take in a bin of later points."""
        self.step_last, self.time_last, self.last = later.step_last, later.time_last, later.last
        # A comparison with NaN is false.
        if later.low < self.low or self.low != self.low:
            self.low, self.step_low = later.low, later.step_low
        if later.high > self.high or self.high != self.high:
            self.high, self.step_high = later.high, later.step_high
        if self.first != self.first:
            self.step_first, self.first, self.mean = later.step_first, later.first, later.mean
        elif later.mean == later.mean:
            self.mean += (later.mean - self.mean) * later.count / (self.count + later.count)
        self.count += later.count


def point(step: float, time: float, value: float) -> Bin:
    """Return the bin of one point."""
    return Bin(1, step, step, time, value, value, value, value, step, step, value)


def points_of(line: MetricsLine) -> dict[Series, Bin]:
    """Return the points of a line."""
    time = math.nan if line.time is None else line.time
    return {
        (line.series_group, name): point(
            float(line.step), time, math.nan if value is None else float(value)
        )
        for name, value in line.values.items()
    }


@dataclass
class Stretch:
    """The values of successive lines of a file."""

    begin: int = 0
    """The offset of the first line."""
    end: int = 0
    lines: int = 0
    """Without those that are events."""
    events: list[MetricsLine] = field(default_factory=list)
    series: dict[Series, Bin] = field(default_factory=dict)

    def take(self, line: MetricsLine, size_bytes: int) -> None:
        """Take in the next line."""
        self.end += size_bytes
        if line.event:
            self.events.append(line)
            return
        self.lines += 1
        self._add(points_of(line))

    def join(self, later: Stretch) -> None:
        """Take in the stretch behind this one."""
        self.end, self.lines = later.end, self.lines + later.lines
        self.events += later.events
        self._add(later.series)

    def _add(self, later: dict[Series, Bin]) -> None:
        for name, bin_ in later.items():
            if (mine := self.series.get(name)) is None:
                self.series[name] = bin_
            else:
                mine.add(bin_)

    def spans(self, first: float, last: float) -> bool:
        """Return whether a point of it may be in a window of steps."""
        return any(
            b.step_last >= first and b.step_first <= last and b.step_last != NO_STEP
            for b in self.series.values()
        )

    def encode(self) -> bytes:
        """Return its line of `X.bins`."""
        series = [[*name, *astuple(bin_)] for name, bin_ in self.series.items()]
        events = [event.encode().decode() for event in self.events]
        content = [self.begin, self.end, self.lines, events, series]
        return (json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def decode(content: bytes) -> list[Stretch]:
    """Return the stretches of such a file; there are none in a damaged one."""
    *whole, _ = content.decode(errors="replace").split("\n")
    try:
        return [
            Stretch(
                begin, end, lines, [*parse_lines("".join(events).encode())] if events else [],
                {(group, name): Bin(*fields) for group, name, *fields in series},
            )
            for begin, end, lines, events, series in json.loads(f"[{','.join(whole)}]")
        ]  # fmt: skip
    except (ValueError, TypeError):
        return []


def bins_file(metrics_file: str) -> str:
    """Return the name of the file of bins beside a file of metrics."""
    return f"{without_suffix(metrics_file, '.jsonl')}.bins"

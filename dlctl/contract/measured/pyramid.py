"""Bins of ever more points, so that a long curve is drawn from few numbers without losing a spike.

A bin holds the smallest, largest, first and last of 2^k successive points of one series, exactly,
and where the smallest and the largest were. Beside a file of metrics `X.jsonl` stand

- `X.series`: one series a line as JSON, `[group, name, shape]`. Series of one shape began in the
  same line, so they have about the same number of points;
- `X.<shape>.k<k>`: bins of 2^k points of all series of a shape, in the order in which they became
  full. Level 0 is single points, and ends once it has `POINTS_BYTES`;
- `X.index`: for every `INDEX_EVERY`th line its step and where it begins in `X.jsonl`;
- `X.events`: the lines of `X.jsonl` that are events.

There are none of a file in which a series goes back to an earlier step, or of more than
`MOST_SERIES`: lines alone tell what counts there.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

LEVELS = (4, 6, 8, 10, 12, 14, 16, 18, 20)
"""k of the levels above 0: each bin covers four of the level below, the first one 16 points."""
FROM_BYTES = 400_000
"""A smaller file of metrics has no bins: it is read whole."""
POINTS_BYTES = 4 * 1024 * 1024
MOST_SERIES = 32_768
SHAPES = 8
"""Series of further shapes count to the last one."""
INDEX_EVERY = 256
_INDEX = struct.Struct("<dQ")
INDEX_BYTES = _INDEX.size
_RECORD = struct.Struct("<II9d")
RECORD_BYTES = _RECORD.size


@dataclass
class Bin:
    """Successive points of a series."""

    series: int
    """The number of the line in `X.series`, from 0."""
    count: int
    step_first: float
    step_last: float
    time_last: float
    """Unix seconds; NaN if unknown."""
    low: float
    """NaN, like `high`, if all values are."""
    high: float
    first: float
    last: float
    step_low: float
    """Where the value was `low` first."""
    step_high: float

    def add(self, later: Bin) -> None:
        """Take in a bin of later points."""
        self.count += later.count
        self.step_last, self.time_last, self.last = later.step_last, later.time_last, later.last
        # A comparison with NaN is false.
        if later.low < self.low or math.isnan(self.low):
            self.low, self.step_low = later.low, later.step_low
        if later.high > self.high or math.isnan(self.high):
            self.high, self.step_high = later.high, later.step_high

    def encode(self) -> bytes:
        """Return the record of a level's file."""
        return _RECORD.pack(
            self.series, self.count, self.step_first, self.step_last, self.time_last,
            self.low, self.high, self.first, self.last, self.step_low, self.step_high,
        )  # fmt: skip


def point(series: int, step: float, time: float, value: float) -> Bin:
    """Return the bin of one point."""
    return Bin(series, 1, step, step, time, value, value, value, value, step, step)


def decode(content: bytes) -> Iterator[Bin]:
    """Yield the bins of a level's file; a partial record at its end is left out."""
    whole = len(content) - len(content) % RECORD_BYTES
    for fields in _RECORD.iter_unpack(memoryview(content)[:whole]):
        yield Bin(*fields)


class Builder:
    """Builds the levels of all series of a file, point by point.

    Args:
        full: called with a level and each bin of it that became full.
    """

    def __init__(self, full: Callable[[int, Bin], None]) -> None:
        self._full = full
        self._open: dict[int, list[Bin | None]] = {}

    def add_bin(self, series: int, bin_: Bin) -> None:
        """Take in the next points of a series; a bin of many may make one that is too full."""
        levels = self._open.get(series)
        if levels is None:
            levels = self._open[series] = [None] * len(LEVELS)
        for index, k in enumerate(LEVELS):
            if (current := levels[index]) is None:
                levels[index] = current = bin_
            else:
                current.add(bin_)
            if current.count < 1 << k:
                return
            levels[index] = None
            self._full(k, current)
            bin_ = Bin(**vars(current))


def encode_index(step: float, offset: int) -> bytes:
    """Return the record of a line in the index."""
    return _INDEX.pack(step, offset)


def decode_index(content: bytes) -> list[tuple[float, int]]:
    """Return step and offset of each line of an index; a partial record is left out."""
    whole = len(content) - len(content) % INDEX_BYTES
    return [(step, offset) for step, offset in _INDEX.iter_unpack(memoryview(content)[:whole])]


def level_file(metrics_file: str, shape: int, k: int) -> str:
    """Return the file of one level of a shape, beside a file of metrics."""
    return f"{metrics_file.removesuffix('.jsonl')}.{shape}.k{k}"


def side_file(metrics_file: str, what: str) -> str:
    """Return a file beside a file of metrics: of `series`, `index` or `events`."""
    return f"{metrics_file.removesuffix('.jsonl')}.{what}"


@dataclass(frozen=True)
class Named:
    """A series of a file."""

    group: str
    name: str
    shape: int

    def encode(self) -> bytes:
        """Return its line in the file of series."""
        return (json.dumps([self.group, self.name, self.shape], ensure_ascii=False) + "\n").encode()


def decode_names(content: bytes) -> list[Named]:
    """Return the series in such a file; an unreadable line names nothing."""
    found = []
    for line in content.split(b"\n")[:-1]:
        try:
            group, name, shape = json.loads(line)
            found.append(Named(str(group), str(name), int(shape)))
        except (ValueError, TypeError):
            found.append(Named("", "", -1))
    return found

"""Bins of ever more points, so that a long curve is drawn from few numbers without losing a spike.

A bin holds the smallest, largest, first and last of 2^k successive points of one series. Beside a
file of metrics `X.jsonl` stand `X.names`, one series a line as JSON (`[group, name]`), and for each
level `X.k<k>`: bins of 2^k points of all series, in the order in which they became full. Programs
without such files build the same bins in memory.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

LEVELS = (4, 6, 8, 10, 12, 14, 16, 18, 20)
"""k of the levels that are kept: each bin covers four of the level below."""
_RECORD = struct.Struct("<IIdddffff")
RECORD_BYTES = _RECORD.size
_LARGEST = 3.4e38
"""Of a float with 32 bits, which is enough to draw with."""


@dataclass
class Bin:
    """Successive points of a series."""

    series: int
    """The number of the line in `X.names`, from 0."""
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

    def add(self, later: Bin) -> None:
        """Take in a bin of later points."""
        self.count += later.count
        self.step_last, self.time_last, self.last = later.step_last, later.time_last, later.last
        # A comparison with NaN is false.
        if later.low < self.low or math.isnan(self.low):
            self.low = later.low
        if later.high > self.high or math.isnan(self.high):
            self.high = later.high

    def encode(self) -> bytes:
        """Return the record of a level's file."""
        values = (max(-_LARGEST, min(_LARGEST, v)) if v == v else v
                  for v in (self.low, self.high, self.first, self.last))  # fmt: skip
        return _RECORD.pack(
            self.series, self.count, self.step_first, self.step_last, self.time_last, *values
        )


def point(series: int, step: float, time: float, value: float) -> Bin:
    """Return the bin of one point."""
    return Bin(series, 1, step, step, time, value, value, value, value)


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

    def add(self, series: int, step: float, time: float, value: float) -> None:
        """Take in the next point of a series; NaN is a value that is no number."""
        self.add_bin(series, point(series, step, time, value))

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

    def open_bins(self, series: int, k: int) -> list[Bin]:
        """Return the points of a series that are in no full bin of a level, oldest first."""
        levels = self._open.get(series, [])[: LEVELS.index(k) + 1]
        return [b for b in reversed(levels) if b is not None]


def level_file(metrics_file: str, k: int) -> str:
    """Return the file of one level beside a file of metrics."""
    return f"{metrics_file.removesuffix('.jsonl')}.k{k}"


def names_file(metrics_file: str) -> str:
    """Return the file that names the series of a file of metrics."""
    return f"{metrics_file.removesuffix('.jsonl')}.names"


def encode_name(group: str, name: str) -> bytes:
    """Return the line of a series in the file of names."""
    return (json.dumps([group, name], ensure_ascii=False) + "\n").encode()


def decode_names(content: bytes) -> list[tuple[str, str]]:
    """Return group and name of each series; an unreadable line gets empty ones."""
    found = []
    for line in content.split(b"\n")[:-1]:
        try:
            group, name = json.loads(line)
            found.append((str(group), str(name)))
        except (ValueError, TypeError):
            found.append(("", ""))
    return found

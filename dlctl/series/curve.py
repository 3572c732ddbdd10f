"""A series of values over the steps of a training, from which any window is drawn quickly."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import mul

from dlctl.contract.measured.bins import Bin
from dlctl.contract.measured.judged_series import Key, is_better_lower, key_of
from dlctl.contract.metrics import NO_STEP, Source

_FIRST = 16
__all__ = ["Columns", "Curve", "Ends", "Key", "key_of", "merged"]


@dataclass
class Columns:
    """Bins of points, column by column; a bin of one point has equal values.

    All columns are float64 and have one length. Values that are no number are NaN.
    """

    step_first: array[float] = field(default_factory=lambda: array("d"))
    step_last: array[float] = field(default_factory=lambda: array("d"))
    time: array[float] = field(default_factory=lambda: array("d"))
    """Unix seconds of the last point; NaN if unknown."""
    low: array[float] = field(default_factory=lambda: array("d"))
    high: array[float] = field(default_factory=lambda: array("d"))
    first: array[float] = field(default_factory=lambda: array("d"))
    last: array[float] = field(default_factory=lambda: array("d"))
    step_low: array[float] = field(default_factory=lambda: array("d"))
    """Where the value was `low` first; `step_high` likewise."""
    step_high: array[float] = field(default_factory=lambda: array("d"))
    count: array[float] = field(default_factory=lambda: array("d"))
    mean: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.last)

    def append(self, b: Bin) -> None:
        """Append a bin."""
        self.step_first.append(b.step_first)
        self.step_last.append(b.step_last)
        self.time.append(b.time_last)
        self.low.append(b.low)
        self.high.append(b.high)
        self.first.append(b.first)
        self.last.append(b.last)
        self.step_low.append(b.step_low)
        self.step_high.append(b.step_high)
        self.count.append(b.count)
        self.mean.append(b.mean)

    def point(self, step: float, time: float, value: float) -> None:
        """Append one point."""
        for steps in (self.step_first, self.step_last, self.step_low, self.step_high):
            steps.append(step)
        for values in (self.low, self.high, self.first, self.last, self.mean):
            values.append(value)
        self.time.append(time)
        self.count.append(1.0)

    def cut(self, length: int) -> None:
        """Keep only the first so many bins."""
        for column in vars(self).values():
            del column[length:]

    def part(self, begin: int, end: int | None = None) -> Columns:
        """Return some of the bins."""
        return Columns(**{name: column[begin:end] for name, column in vars(self).items()})

    def holding(self, values: list[float]) -> Columns:
        """Return the same bins with a value each."""
        column = array("d", values)
        same = dict.fromkeys(("low", "high", "first", "last", "mean"), column)
        return replace(self, **same)

    def extend(self, others: Columns) -> None:
        """Append bins."""
        for name, column in vars(self).items():
            column.extend(vars(others)[name])

    def bins(self, begin: int = 0, end: int | None = None) -> Iterator[Bin]:
        """Yield bins."""
        rows = zip(
            self.count[begin:end], self.step_first[begin:end], self.step_last[begin:end],
            self.time[begin:end], self.low[begin:end], self.high[begin:end],
            self.first[begin:end], self.last[begin:end], self.step_low[begin:end],
            self.step_high[begin:end], self.mean[begin:end], strict=True,
        )  # fmt: skip
        for count, *others in rows:
            yield Bin(int(count), *others)


@dataclass(frozen=True)
class Ends:
    """Step and value of four points of a curve, exactly; of equal values the first one."""

    first: tuple[float, float]
    """The first value that is a number."""
    last: tuple[float, float]
    """The newest; NaN if that is no number."""
    lowest: tuple[float, float]
    highest: tuple[float, float]


class Curve:
    """One series; points are appended in the order of their steps, and cut off at the end."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.points = Columns()
        """The finest that is known: single points, or bins of a long curve."""
        self._levels: list[Columns] = []
        """A bin of the first stands for `_FIRST` points, of each other for four bins below it."""

    def __len__(self) -> int:
        return len(self.points)

    @property
    def last(self) -> float:
        """Return the newest value; NaN without any."""
        return self.points.last[-1] if len(self.points) else math.nan

    def mean(self) -> float:
        """Return the mean of all points that are numbers; NaN without any."""
        found = self._whole()
        return _mean(found, 0, len(found)) if len(found) else math.nan

    def highest(self) -> float:
        """Return the largest value; NaN without any."""
        found = self._whole()
        return found.high[_extreme(max, found.high, 0, len(found))] if len(found) else math.nan

    def _whole(self) -> Columns:
        """Return all points in the fewest bins that are kept."""
        self._build()
        levels, found = [self.points, *self._levels], Columns()
        for k in reversed(range(len(levels))):
            covered = len(levels[k + 1]) * _size(k) if k + 1 < len(levels) else 0
            found.extend(levels[k].part(covered))
        return found

    def values(self) -> list[tuple[float, float]]:
        """Return (step, value) of each point, or of the last point of each bin, without NaN."""
        pairs = zip(self.points.step_last, self.points.last, strict=True)
        return [(step, value) for step, value in pairs if not math.isnan(value)]

    def ends(self) -> Ends | None:
        """Return what every face tells of the curve; None if nothing of it is a number."""
        points = self.points
        if (begin := self._first_known()) is None:
            return None
        low = _extreme(min, points.low, 0, len(points))
        high = _extreme(max, points.high, 0, len(points))
        return Ends(
            (points.step_first[begin], points.first[begin]),
            (points.step_last[-1], points.last[-1]),
            (points.step_low[low], points.low[low]),
            (points.step_high[high], points.high[high]),
        )

    def _first_known(self) -> int | None:
        """Return the place of the first point or bin with a number."""
        return next((at for at, value in enumerate(self.points.low) if value == value), None)

    def best(self) -> tuple[float, float] | None:
        """Return (step, value) of the best point; None if nobody knows what is good."""
        lower, ends = is_better_lower(self.key.name), self.ends()
        if lower is None or ends is None:
            return None
        return ends.lowest if lower else ends.highest

    def drop_after(self, step: float) -> Bin | None:
        """Forget the points after a step: they are done again.

        Return the bin that had points on both sides, of which nothing is left.
        """
        if not len(self.points) or self.points.step_last[-1] <= step:
            return None
        if self.points.step_last[0] == NO_STEP:  # measured without a step: nothing replaces it
            return None
        kept = bisect_right(self.points.step_last, step)
        (first,) = self.points.bins(kept, kept + 1)
        self.points.cut(kept)
        self._levels.clear()
        return first if first.step_first <= step else None

    def replace(self, finer: Sequence[Bin]) -> None:
        """Put finer bins in the place of those that they cover, or points where there are none."""
        first, last = finer[0].step_first, finer[-1].step_last
        begin = bisect_left(self.points.step_first, first)
        end = bisect_right(self.points.step_last, last)
        fresh = Columns()
        for bin_ in finer:
            fresh.append(bin_)
        for name, column in vars(self.points).items():
            column[begin:end] = vars(fresh)[name]
        self._levels.clear()

    def view(self, begin: float, end: float, width: int, by_time: bool = False) -> Columns:
        """Return at most about `width` bins of a window, coarse ones for a wide window.

        Args:
            begin, end: steps, or Unix seconds if `by_time`.
        """
        self._build()
        levels, k = [self.points, *self._levels], 0
        first, last = _window(self.points, begin, end, by_time)
        while last - first > 4 * width and k + 1 < len(levels):
            k += 1
            first, last = _window(levels[k], begin, end, by_time)
        shown = levels[k].part(first, last)
        if last >= len(levels[k]):  # the newest points are in no full bin yet
            for below in range(k - 1, -1, -1):
                shown.extend(levels[below].part(len(levels[below + 1]) * _size(below)))
        return merged(shown, width)

    def _build(self) -> None:
        below = self.points
        for k in range(len(self._levels) + 1):
            if len(below) < _size(k):
                return
            if k == len(self._levels):
                self._levels.append(Columns())
            level = self._levels[k]
            level.extend(_joined(below, range(len(level) * _size(k), len(below) + 1, _size(k))))
            below = level


def _size(k: int) -> int:
    """Return how many bins of a level, or points, make one of the next level."""
    return 4 if k else _FIRST


def _window(columns: Columns, begin: float, end: float, by_time: bool) -> tuple[int, int]:
    """Return the range of bins in a window, with a neighbour on each side for lines to the edge."""
    left = columns.time if by_time else columns.step_last
    right = columns.time if by_time else columns.step_first
    return max(0, bisect_left(left, begin) - 1), bisect_right(right, end) + 1


def merged(columns: Columns, width: int) -> Columns:
    """Return at most `width` bins: neighbours of about the same number are merged."""
    count = len(columns)
    if count <= width:
        return columns
    return _joined(columns, [(i * count) // width for i in range(width + 1)])


def _joined(columns: Columns, ends: Sequence[int]) -> Columns:
    """Return a bin of the bins between each two ends."""
    parts = list(zip(ends, ends[1:], strict=False))
    lows = [_extreme(min, columns.low, a, b) for a, b in parts]
    highs = [_extreme(max, columns.high, a, b) for a, b in parts]
    return Columns(
        step_first=array("d", [columns.step_first[a] for a, _ in parts]),
        step_last=array("d", [columns.step_last[b - 1] for _, b in parts]),
        time=array("d", [columns.time[b - 1] for _, b in parts]),
        low=array("d", [columns.low[at] for at in lows]),
        high=array("d", [columns.high[at] for at in highs]),
        first=array("d", [columns.first[a] for a, _ in parts]),
        last=array("d", [columns.last[b - 1] for _, b in parts]),
        step_low=array("d", [columns.step_low[at] for at in lows]),
        step_high=array("d", [columns.step_high[at] for at in highs]),
        count=array("d", [sum(columns.count[a:b]) for a, b in parts]),
        mean=array("d", [_mean(columns, a, b) for a, b in parts]),
    )


def _mean(columns: Columns, begin: int, end: int) -> float:
    """Return the mean of some bins without those that have no number."""
    means, counts = columns.mean[begin:end], columns.count[begin:end]
    total = sum(map(mul, means, counts))
    if total == total:
        return float(total / sum(counts))
    known = [(m, n) for m, n in zip(means, counts, strict=True) if m == m]
    return sum(m * n for m, n in known) / sum(n for _, n in known) if known else math.nan


def _extreme(
    pick: Callable[[Iterable[float]], float], values: array[float], begin: int, end: int
) -> int:
    """Return where the first smallest or largest value is; where NaN is only if all are."""
    part = values[begin:end]
    found = pick(part)
    if found != found:  # NaN at the beginning wins every comparison
        known = [value for value in part if value == value]
        if not known:
            return begin
        found = pick(known)
    return begin + part.index(found)


_UNITS = 1000
_BEFORE = 1000
"""The number of bins that stand for the points before the window."""


def smoothed(
    curve: Curve, factor: float, length: tuple[float, float], shown: Columns, *, by_time: bool
) -> list[float]:
    """Return the smoothed values of a window.

    Args:
        factor: the share that the past keeps after a thousandth of the run: from 0 to below 1.
        length: of the whole run, in steps and in seconds, so that all of its curves are smoothed
            alike, however many points each has.
        shown: the window, as `Curve.view` has returned it.
        by_time: whether the window is one of times.
    """
    measured_by_time = curve.key.source == Source.NODE.value
    unit = length[measured_by_time] / _UNITS or 1.0
    found: list[float] = []
    sum_, weight, place = 0.0, 0.0, math.nan
    for columns in (_before(curve, shown, by_time), shown):
        places = columns.time if measured_by_time else columns.step_last
        for at, value in zip(places, columns.mean, strict=True):
            if math.isfinite(value):
                kept = factor ** ((at - place) / unit) if at > place else factor
                sum_ = kept * sum_ + (1 - kept) * value
                weight = kept * weight + 1 - kept
                place = at
            if columns is shown:
                found.append(sum_ / weight if weight else math.nan)
    return found


def _before(curve: Curve, shown: Columns, by_time: bool) -> Columns:
    """Return what is before a window, in a few bins."""
    if not len(shown):
        return Columns()
    first = shown.time[0] if by_time else shown.step_first[0]
    found = curve.view(-math.inf, first, _BEFORE, by_time)
    found.cut(bisect_left(found.time if by_time else found.step_last, first))
    return found

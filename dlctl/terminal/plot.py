"""A plot of curves with axes, as lines of text. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from dlctl.series.curve import Columns
from dlctl.terminal.text import DIM, Line

_FARTHEST = 8e307
"""Twice that is a number, too."""
_FEW = 20
"""With fewer values none is rare."""
_LEFT = 9
"""Columns for the numbers beside the vertical axis."""
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_MASKS = [
    [[sum(_DOTS[y][side] for y in range(top, bottom + 1)) for bottom in range(4)]
     for top in range(4)]
    for side in range(2)
]  # fmt: skip
"""The dots of a part of a character's column, by side, first and last dot."""
_BLANK = 0x2800


class Canvas:
    """Dots, two across and four down in each character (Unicode's braille patterns).

    Each character has one colour: the last one drawn wins.

    Args:
        columns, rows: in characters.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.width, self.height = 2 * columns, 4 * rows
        self._dots = [[0] * columns for _ in range(rows)]
        self._colours = [[0] * columns for _ in range(rows)]

    def column(self, x: int, top: int, bottom: int, colour: int) -> None:
        """Draw a vertical line, a character at a time."""
        top, bottom = max(0, top), min(self.height - 1, bottom)
        if not 0 <= x < self.width or top > bottom:
            return
        place, masks = x >> 1, _MASKS[x & 1]
        begin, end = top >> 2, bottom >> 2
        for row in range(begin, end + 1):
            mask = masks[top & 3 if row == begin else 0][bottom & 3 if row == end else 3]
            self._dots[row][place] |= mask
            self._colours[row][place] = colour

    def pieces(self) -> Iterator[list[tuple[str, int]]]:
        """Yield the pieces of each row with their colours; 0 is none, and a blank is a space."""
        for dots, colours in zip(self._dots, self._colours, strict=True):
            signs = (chr(_BLANK + each) if each else " " for each in dots)
            runs = groupby(zip(signs, colours, strict=True), itemgetter(1))
            yield [("".join(sign for sign, _ in run), colour) for colour, run in runs]


@dataclass(frozen=True)
class Drawn:
    """One curve of a plot."""

    columns: Columns
    colour: int
    faint: bool = False
    """Whether it is drawn as single dots, behind the others: raw values under smoothed ones."""


@dataclass(frozen=True)
class Plot:
    """The curves to draw, and their axes."""

    curves: Sequence[Drawn]
    begin: float
    end: float
    """The window of steps, or Unix seconds if `by_time`."""
    logarithmic: bool = False
    by_time: bool = False
    marks: Sequence[tuple[float, str]] = field(default_factory=tuple)
    """Where events are, and the character that marks each."""
    limits: tuple[float, float] | None = None
    """The range of y, if it is not that of all values."""


def draw(plot: Plot, columns: int, rows: int) -> list[Line]:
    """Return the plot in so many columns and rows, axes and marks included."""
    inner, height = max(4, columns - _LEFT - 1), max(2, rows - 2)
    canvas = Canvas(inner, height)
    low, high = _range(plot)
    if low is None or high is None:
        empty = Line().add(" " * _LEFT + "no values to draw yet", DIM)
        return [empty, *[Line()] * (rows - 1)]
    for curve in sorted(plot.curves, key=lambda c: not c.faint):
        _draw(canvas, curve, plot, low, high)
    lines = []
    ticks = _ticks(low, high, height)
    for row, pieces in enumerate(canvas.pieces()):
        label = _label(ticks[row], plot.logarithmic) if row in ticks else ""
        line = Line().add(label.rjust(_LEFT - 1) + " ", DIM).add("┤" if label else "│", DIM)
        for text, colour in pieces:
            line.add(text, colour)
        lines.append(line)
    lines.append(_marks(plot, inner))
    lines.append(_steps(plot, inner))
    return lines


def robust_limits(curves: Sequence[Drawn], logarithmic: bool) -> tuple[float, float] | None:
    """Return the range of y without the rarest hundredth at each end; None for few values."""
    values = sorted(
        v for c in curves if not c.faint for v in c.columns.last if _fits(v, logarithmic)
    )
    if len(values) <= _FEW:
        return None
    cut_off = len(values) // 100
    return values[max(1, cut_off)], values[-1 - max(1, cut_off)]


def beyond(plot: Plot) -> str:
    """Return in words how many points are beyond the limits of a plot."""
    if plot.limits is None:
        return "all values"
    low, high = plot.limits
    bins = [b for c in plot.curves if not c.faint for b in c.columns.bins()]
    odd = [b for b in bins if b.low < low or b.high > high]
    least = "at least " if any(b.count > 1 for b in odd) else ""
    return f"y is cut: {least}{len(odd)} point{'' if len(odd) == 1 else 's'} beyond"


def _range(plot: Plot) -> tuple[float | None, float | None]:
    lows = [v for c in plot.curves for v in c.columns.low if _fits(v, plot.logarithmic)]
    highs = [v for c in plot.curves for v in c.columns.high if _fits(v, plot.logarithmic)]
    if not lows:
        return None, None
    low, high = plot.limits or (min(lows), max(highs))
    if plot.logarithmic:
        low, high = math.log10(low), math.log10(high)
    low, high = max(low, -_FARTHEST), min(high, _FARTHEST)
    if high - low <= 1e-15 * max(abs(low), abs(high)):
        room = abs(high) * 0.1 or 1.0
        return low - room, high + room
    return low, high


def _fits(value: float, logarithmic: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not logarithmic)


def _draw(canvas: Canvas, curve: Drawn, plot: Plot, low: float, high: float) -> None:
    columns, colour = curve.columns, curve.colour
    xs = columns.time if plot.by_time else columns.step_last
    across = (canvas.width - 1) / (plot.end - plot.begin or 1.0)
    down = (canvas.height - 1) / (high - low)
    before: tuple[int, int] | None = None
    values = (columns.low, columns.high, columns.first, columns.last)
    if plot.logarithmic:
        values = tuple([_log(v) for v in column] for column in values)  # type: ignore[assignment]
    for x, small, large, first, last in zip(xs, *values, strict=True):
        finite = x - x == 0 and large - large == 0 and small - small == 0
        if not (finite and large >= small):
            before = None
            continue
        if plot.limits is not None:
            small, large, first, last = (_near(v, low, high) for v in (small, large, first, last))
        place = int((x - plot.begin) * across + 0.5)
        top, bottom = int((high - large) * down + 0.5), int((high - small) * down + 0.5)
        if before is not None and not curve.faint:
            if place - before[0] > 1:
                if first - first == 0:
                    _connect(canvas, before, (place, int((high - first) * down + 0.5)), colour)
            else:  # the line to a neighbour is a part of this column
                top, bottom = min(top, before[1]), max(bottom, before[1])
        canvas.column(place, top, bottom, colour)
        before = (place, int((high - last) * down + 0.5)) if last - last == 0 else None


def _near(value: float, low: float, high: float) -> float:
    """Return a value that is at most one range away: what is beyond is not drawn."""
    return max(2 * low - high, min(2 * high - low, value)) if value == value else value


def _log(value: float) -> float:
    return math.log10(value) if value > 0 else math.nan


def _connect(canvas: Canvas, a: tuple[int, int], b: tuple[int, int], colour: int) -> None:
    """Draw a line between two points, a column of dots at a time."""
    width = b[0] - a[0]
    if width > 4 * canvas.width:  # from far outside
        return
    y = a[1]
    for i in range(1, width + 1):
        following = a[1] + round((b[1] - a[1]) * i / width)
        canvas.column(a[0] + i, min(y, following), max(y, following), colour)
        y = following


def _ticks(low: float, high: float, rows: int) -> dict[int, float]:
    """Return the rows that get a number, and the number."""
    count = max(2, min(6, rows // 3 + 1))
    places = {round(i * (rows - 1) / (count - 1)) for i in range(count)}
    return {row: high - row / max(1, rows - 1) * (high - low) for row in places}


def _label(value: float, logarithmic: bool) -> str:
    return format(10**value if logarithmic else value, ".3g")


def _marks(plot: Plot, inner: int) -> Line:
    span = plot.end - plot.begin or 1.0
    cells = ["─"] * inner
    for at, sign in plot.marks:
        place = round((at - plot.begin) / span * (inner - 1))
        if 0 <= place < inner:
            cells[place] = sign
    return Line().add(" " * _LEFT + "└" + "".join(cells), DIM)


def _steps(plot: Plot, inner: int) -> Line:
    first, middle, last = (
        _x_label(plot, plot.begin + share * (plot.end - plot.begin)) for share in (0, 0.5, 1)
    )
    if middle in (first, last):  # numbers that differ would read alike
        middle = ""
    text = first.ljust(inner // 2 - len(middle) // 2) + middle
    return Line().add(" " * (_LEFT + 1) + text + last.rjust(inner - len(text)), DIM)


def _x_label(plot: Plot, value: float) -> str:
    if not plot.by_time:
        return f"{value:,.0f}"
    import time

    try:
        return time.strftime("%H:%M:%S", time.localtime(value))
    except (OverflowError, OSError, ValueError):
        return "?"

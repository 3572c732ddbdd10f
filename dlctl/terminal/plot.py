"""A plot of curves with axes, as lines of text. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from dlctl.series.curve import Columns
from dlctl.terminal.braille import Canvas
from dlctl.terminal.text import DIM, Line

_LEFT = 9
"""Columns for the numbers beside the vertical axis."""


@dataclass(frozen=True)
class Drawn:
    """One curve of a plot."""

    columns: Columns
    colour: int
    faint: bool = False
    """Whether it is drawn as single dots, behind the others: raw values under smoothed ones."""


@dataclass(frozen=True)
class Plot:
    """What to draw, and how."""

    curves: Sequence[Drawn]
    begin: float
    end: float
    """The window of steps, or Unix seconds if `by_time`."""
    logarithmic: bool = False
    by_time: bool = False
    marks: Sequence[tuple[float, str]] = field(default_factory=tuple)
    """Where events are, and the character that marks each."""


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
    for row, cells in enumerate(canvas.cells()):
        label = _label(ticks[row], plot.logarithmic) if row in ticks else ""
        line = Line().add(label.rjust(_LEFT - 1) + " ", DIM).add("┤" if label else "│", DIM)
        for text, colour in _grouped(cells):
            line.add(text, colour)
        lines.append(line)
    lines.append(_marks(plot, inner))
    lines.append(_steps(plot, inner))
    return lines


def _range(plot: Plot) -> tuple[float | None, float | None]:
    lows = [v for c in plot.curves for v in c.columns.low if _fits(v, plot.logarithmic)]
    highs = [v for c in plot.curves for v in c.columns.high if _fits(v, plot.logarithmic)]
    if not lows:
        return None, None
    low, high = min(lows), max(highs)
    if plot.logarithmic:
        low, high = math.log10(low), math.log10(high)
    if high - low < 1e-12 * max(1.0, abs(high)):
        room = abs(high) * 0.1 or 1.0
        return low - room, high + room
    return low, high


def _fits(value: float, logarithmic: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not logarithmic)


def _draw(canvas: Canvas, curve: Drawn, plot: Plot, low: float, high: float) -> None:
    span = plot.end - plot.begin or 1.0
    columns = curve.columns
    xs = columns.time if plot.by_time else columns.step_last

    def height(value: float) -> int:
        scaled = math.log10(value) if plot.logarithmic else value
        return round((high - scaled) / (high - low) * (canvas.height - 1))

    before: tuple[int, int] | None = None
    for x, small, large, first, last in zip(
        xs, columns.low, columns.high, columns.first, columns.last, strict=True
    ):
        if not all(_fits(v, plot.logarithmic) for v in (small, large)):
            before = None
            continue
        place = round((x - plot.begin) / span * (canvas.width - 1))
        canvas.column(place, height(large), height(small), curve.colour)
        if before is not None and not curve.faint and _fits(first, plot.logarithmic):
            _connect(canvas, before, (place, height(first)), curve.colour)
        before = (place, height(last)) if _fits(last, plot.logarithmic) else None


def _connect(canvas: Canvas, a: tuple[int, int], b: tuple[int, int], colour: int) -> None:
    """Draw a line between two points."""
    count = max(abs(b[0] - a[0]), abs(b[1] - a[1]), 1)
    if count > 4 * canvas.width:
        return
    for i in range(count + 1):
        x, y = a[0] + (b[0] - a[0]) * i / count, a[1] + (b[1] - a[1]) * i / count
        canvas.dot(round(x), round(y), colour)


def _grouped(cells: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for text, colour in cells:
        if found and found[-1][1] == colour:
            found[-1] = (found[-1][0] + text, colour)
        else:
            found.append((text, colour))
    return found


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
    text = first.ljust(inner // 2 - len(middle) // 2) + middle
    return Line().add(" " * (_LEFT + 1) + text + last.rjust(inner - len(text)), DIM)


def _x_label(plot: Plot, value: float) -> str:
    if not plot.by_time:
        return f"{value:,.0f}"
    import time

    return time.strftime("%H:%M:%S", time.localtime(value))

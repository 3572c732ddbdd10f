"""Draws a training in a notebook: a small table, and the curve by which it is judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite
from typing import TYPE_CHECKING

from dlctl.outputs.metrics.reader import MetricsReader
from dlctl.series.answers import main_curve
from dlctl.service.describe import loss_in_words, progress_in_words

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record

_WIDTH, _HEIGHT, _MOST = 320, 80, 640


@dataclass(frozen=True)
class Line:
    """A curve to draw."""

    name: str
    across: str
    """The unit of the horizontal axis: `steps` or `trials`."""
    points: Sequence[tuple[float, float]] = ()


def line_of(record: Record, session: Session | None) -> Line:
    """Return the curve by which a training is judged.

    Args:
        session: Its site; None: as it was last known.
    """
    reader = MetricsReader(record)
    if session is not None:
        reader.refresh(session.transport)
        reader.save()
    if (curve := main_curve(reader.run)) is None:
        return Line("", "")
    return Line(curve.key.shown, "steps", [(at, value) for at, value, *_ in curve.values()])


def html_of(record: Record, line: Line, note: str = "") -> str:
    """Return a table and a curve, without script and without anything from outside."""
    rows = {
        "training": record.training_id, "state": record.state_in_words, "reason": record.reason,
        "site": record.site, "job": record.job_id,
        "progress": ", ".join([*progress_in_words(record), *loss_in_words(record)]), "note": note,
    }  # fmt: skip
    cells = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(value)}</td></tr>"
        for name, value in rows.items() if value
    )  # fmt: skip
    return f"<div><table>{cells}</table>{_drawn(line)}</div>"


def _drawn(line: Line) -> str:
    values = [each for each in line.points if isfinite(each[1])]
    points = values[:: max(1, len(values) // _MOST)]
    if not points:
        return ""
    first, last = points[0][0], points[-1][0]
    low, high = min(v for _, v in points), max(v for _, v in points)
    if len(points) == 1:
        return f"<small>{escape(f'{line.name}: {low:.4g}, {line.across} {first:,.0f}')}</small>"
    across, up = _WIDTH / ((last - first) or 1), (_HEIGHT - 4) / ((high - low) or 1)
    path = " ".join(
        f"{(at - first) * across:.1f},{_HEIGHT - 2 - (value - low) * up:.1f}"
        for at, value in points
    )
    title = f"{line.name}: {low:.4g} to {high:.4g}, {line.across} {first:,.0f} to {last:,.0f}"
    return (
        f"<svg width='{_WIDTH}' height='{_HEIGHT}' role='img' aria-label='{escape(title)}'>"
        f"<title>{escape(title)}</title><polyline fill='none' stroke='currentColor' "
        f"stroke-width='1.5' points='{path}'/></svg><br><small>{escape(title)}</small>"
    )

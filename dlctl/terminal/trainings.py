"""A table of trainings that fits a width: what stands where, and what is left out. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import State
from dlctl.service.describe import starts
from dlctl.terminal.text import BOLD, DIM, TONES, YELLOW, Line, page, width_of
from dlctl.units import counted, format_span

if TYPE_CHECKING:
    from dlctl.record import Record

COLUMNS = ("training", "state", "site", "progress", "left", "elapsed", "loss", "why")
_FROM_WIDTH = {"progress": 50, "why": 60, "left": 70, "site": 80, "elapsed": 90, "loss": 110}
"""From how many columns of the terminal on a column is shown; the others always are."""
_LONGEST = {"training": 40, "site": 16, "state": 34}
_LEAST_WHY = 16


def reason_of(record: Record, now: float) -> str:
    """Return what is to be said of a state, with the time at which a job is expected to start."""
    if record.state is State.PENDING:
        why = record.reason.removeprefix("waiting in the queue").removeprefix(": ")
        return "; ".join(part for part in (starts(record, now), why) if part)
    reason, output = record.reason, ""
    if record.state is State.COMPLETED:  # what is more to be said than that all ended well
        reason = reason.partition("; ")[2]
    if record.state.final and record.made and not record.was_fetched("output"):
        output = contract.tell_output(record.made.output)
    return f"{reason.rstrip('.')}; {output}" if reason and output else reason or output


def time_left(record: Record, now: float) -> str:
    """Return `3 min` until the training is done, if it goes on like this; "-" if nobody knows."""
    left_s = record.ends_at - now
    return format_span(left_s) if record.state is State.TRAINING and left_s > 0 else "-"


def progress(record: Record) -> str:
    """Return `epoch 3/8`; `40 %`, `epoch 3` or `step 70` of a program whose epochs nobody knows.

    While data is loaded or results are stored, return how far that is.
    """
    if record.moved is not None and record.state.runs:
        return f"{100 * record.moved:.0f} %"
    if record.epoch is not None and (record.epochs or record.done is None):
        return f"epoch {record.epoch}" + (f"/{record.epochs}" if record.epochs else "")
    if record.done is not None:
        return f"{100 * record.done:.0f} %"
    return "-" if record.step is None else f"step {record.step}"


def cells(record: Record, now: float, *, fresh: bool = True) -> dict[str, str]:
    """Return what stands in a row.

    Args:
        fresh: whether the site has just told the state, so that it needs no age.
    """
    fresh = (fresh and record.stale_since is None) or record.state.final
    when = f"{format_span(now - record.seen_at)} ago" if record.seen_at else "never seen"
    until = record.ended_at if record.state.final else now if fresh else record.seen_at
    ran = record.started_at and until
    return {
        "training": record.training_id,
        "state": str(record.state) if fresh else f"{record.state} ({when})",
        "site": record.site,
        "progress": progress(record),
        "left": time_left(record, now),
        "elapsed": format_span(max(0.0, until - record.started_at)) if ran else "-",
        "loss": "-" if record.loss is None else f"{record.loss:.4g}",
        "why": reason_of(record, now),
    }


def table(records: Sequence[Record], columns: int, now: float, *, fresh: bool = True) -> list[Line]:
    """Return a head and a row for each training, none wider than so many columns."""
    shown = [name for name in COLUMNS if columns >= _FROM_WIDTH.get(name, 0)]
    rows = [cells(record, now, fresh=fresh) for record in records]
    widths = {
        name: min(_LONGEST.get(name, 40), max(map(width_of, [name, *(row[name] for row in rows)])))
        for name in shown
    }
    fixed = [name for name in shown if name != "why"]
    least = 2 + min(_LEAST_WHY, widths["why"]) if "why" in widths else 0
    spare = columns - _total(widths, fixed) - least
    widths["training"] = max(8, widths["training"] + min(0, spare))
    if "why" in widths:
        widths["why"] = max(0, columns - _total(widths, fixed) - 2)
    lines = [_row({name: name for name in shown}, widths, BOLD)]
    for record, row in zip(records, rows, strict=True):
        lines.append(_row({name: row[name] for name in shown}, widths, 0, record.state))
    return [line.fitted(columns) for line in lines]


def _row(
    row: dict[str, str], widths: dict[str, int], style: int, state: State | None = None
) -> Line:
    line = Line()
    for name, text in row.items():
        line.add("  " if line.pieces else "")
        own = TONES[state.tone] if state and name == "state" else style
        line.pieces += Line().add(text, own).padded(widths[name]).pieces
    return line


def _total(widths: dict[str, int], names: Sequence[str]) -> int:
    return sum(widths[name] + 2 for name in names) - 2


def frame(
    records: Sequence[Record], trouble: dict[str, str], columns: int, rows: int, now: float
) -> list[Line]:
    """Return a picture of so many lines: the trainings, and which sites do not answer."""
    open_ = sum(not record.state.final for record in records)
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    head = Line().add(f"{counted(len(records), 'training')}, {open_} open", BOLD)
    head.add(f" · {clock} · q leaves", DIM)
    problems = [Line().add(f"{site}: {why}", YELLOW) for site, why in trouble.items()]
    room = max(1, rows - 3 - len(problems))
    more = len(records) - room
    shown = records if more <= 0 else records[: room - 1]
    lines = [*problems, Line(), *table(shown, columns, now)]
    if more > 0:
        lines.append(Line().add(f"and {len(records) - len(shown)} more", DIM))
    return page([head], lines, "", columns, rows)

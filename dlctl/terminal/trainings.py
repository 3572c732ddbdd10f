"""A table of trainings that fits a width: what stands where, and what is left out. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dlctl import contract
from dlctl.contract import State
from dlctl.contract.measured.judged_series import data_of, is_better_lower
from dlctl.contract.metrics import LOSS, Source, finite
from dlctl.errors import Misused
from dlctl.series.readable import exact_span, readable
from dlctl.service.describe import progress_in_words, starts
from dlctl.terminal.text import BOLD, DIM, TONES, YELLOW, Line, page, shortened, width_of
from dlctl.units import counted, format_span, natural, unix_seconds

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.series.run import Run

COLUMNS = ("training", "state", "site", "progress", "left", "elapsed", "loss", "why")
MORE_COLUMNS = ("name", "attempt", "job", "created", "tags", "varied")
"""Columns that are shown only if somebody names them."""
_FIRST_OUT = ("elapsed", "site", "left", "loss", "why", "progress")
"""The order in which columns leave a narrow terminal; the id and the state always stay."""
_FIRST_OUT_OF_SWEEP = ("site", "left", "elapsed", "why", "progress")
_LONGEST = {"training": 40, "site": 16, "state": 34, "why": 1000}
_LONGEST_CELL = 30
_LEAST_WHY = 16
_LEAST_ID = 20
_WHY_IN_PIPE = 80
_UNKNOWN = ("", "-")


@dataclass(frozen=True)
class Columns:
    """The columns of a table, and what it is sorted by.

    Args:
        wanted: The names of all columns; empty: those that fit.
        by: The name of a column: unknown values come last, of a metric the best first.

    A name that is no column's is a metric's, whose newest value is shown; with `best:` before it
    the best one.
    """

    wanted: Sequence[str] = ()
    by: str = ""
    runs: Mapping[str, Run] = field(default_factory=dict)
    """What was measured, by training id, once it is read."""

    def shortened(self, records: Sequence[Record]) -> Columns:
        """Return the columns with the short names of a sweep's keys: `LR` for `env.LR`."""
        keys = {key for record in records for key in record.varied_values}
        short = {name: name.rpartition(".")[2] for name in (*self.wanted, self.by)
                 if name not in keys and name.rpartition(".")[2] in keys}  # fmt: skip
        wanted = [short.get(name, name) for name in self.wanted]
        return replace(self, wanted=wanted, by=short.get(self.by, self.by))

    def metrics(self, records: Sequence[Record]) -> list[str]:
        """Return the columns that hold a metric."""
        known = {*COLUMNS, *MORE_COLUMNS, *(key for r in records for key in r.varied_values)}
        return [name for name in dict.fromkeys([*self.wanted, self.by])
                if name and name not in known]  # fmt: skip

    def names(self, records: Sequence[Record]) -> list[str]:
        """Return the columns, in the list of a sweep's trainings with the keys that vary."""
        extra = [self.by] if self.by and self.by not in (*self.wanted, *COLUMNS) else []
        if self.wanted:
            return [*self.wanted, *extra]
        return list(dict.fromkeys([*COLUMNS[:2], *varied_keys(records), *extra, *COLUMNS[2:]]))

    def value(self, record: Record, metric: str) -> float:
        """Return the newest or best value of a metric; NaN if it is not known."""
        run = self.runs.get(record.training_id)
        group, name = data_of(metric.removeprefix("best:"))
        found = [] if run is None else run.named(name, group or None)
        if not found:
            return math.nan
        if metric.startswith("best:") and (best := found[0].best()):
            return best[1]
        return found[0].last

    def measured(self, record: Record, metrics: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what JSON has of the columns of metrics; nothing if there are none."""
        known = {name: finite(self.value(record, name)) for name in metrics}
        return {"measured": known} if metrics else {}

    def values(self, record: Record, metrics: Sequence[str]) -> dict[str, str]:
        """Return what stands in the columns of metrics."""
        known = {name: self.value(record, name) for name in metrics}
        return {name: "-" if math.isnan(value) else readable(name.removeprefix("best:"), value)
                for name, value in known.items()}  # fmt: skip

    def ordered(self, records: Sequence[Record], now: float) -> list[Record]:
        """Return the trainings in the order that is asked for.

        Raises:
            Misused: a column is neither one of each list nor a metric of any training.
        """
        metrics = self.metrics(records)
        for name in metrics:
            if records and all(math.isnan(self.value(record, name)) for record in records):
                raise Misused(
                    f"no training here has a column or a metric {name!r}; there are "
                    f"{', '.join(self._known(records))}, and what nodes measure"
                )
        if not self.by:
            return list(records)
        keys = [self._key(record, now, metrics) for record in records]
        lower = self.by not in ("loss", *metrics) or is_better_lower(self.by) is not False
        known = [pair for pair in zip(keys, records, strict=True) if pair[0] is not None]
        known.sort(key=lambda pair: pair[0], reverse=not lower)
        unknown = (record for key, record in zip(keys, records, strict=True) if key is None)
        return [*(record for _, record in known), *unknown]

    def _known(self, records: Sequence[Record]) -> list[str]:
        keys = [key for record in records for key in record.varied_values]
        found = {"_".join(filter(None, (key.group, key.name)))
                 for run in self.runs.values() for key in run.curves
                 if key.source != Source.NODE.value}  # fmt: skip
        return list(dict.fromkeys([*COLUMNS, *MORE_COLUMNS, *keys, *sorted(found)]))

    def _key(self, record: Record, now: float, metrics: Sequence[str]) -> Any:
        """Return what to sort a training by; None if it is not known."""
        numbers = {"loss": record.loss, "elapsed": record.elapsed_s(now), "attempt": record.attempt,
                   "left": record.ends_at or None, "progress": record.done,
                   "created": unix_seconds(record.created_at)}  # fmt: skip
        if self.by in metrics:
            numbers[self.by] = self.value(record, self.by)
        if self.by in numbers:
            value = numbers[self.by]
            return None if value is None or math.isnan(value) else value
        text = cells(record, now).get(self.by, "-")
        return None if text in _UNKNOWN else natural(text)


def varied_keys(records: Sequence[Record]) -> list[str]:
    """Return the keys in which trainings of sweeps differ; none if one is of no sweep."""
    found = [record.varied_values for record in records]
    return list(dict.fromkeys(key for each in found for key in each)) if all(found) else []


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
    """Return what says most of how far it is: `epoch 3/8`, `40 %`, `epoch 3` or `step 70`."""
    known = progress_in_words(record)
    counts_epochs = [text for text in known if record.epochs and text.startswith("epoch")]
    return next(iter([*counts_epochs, *known]), "-")


def cells(record: Record, now: float, *, fresh: bool = True) -> dict[str, str]:
    """Return what stands in a row, whichever columns are shown.

    Args:
        fresh: whether the site has just told the state, so that it needs no age.
    """
    fresh = (fresh and record.stale_since is None) or record.state.final
    when = f"{format_span(now - record.seen_at)} ago" if record.seen_at else "never seen"
    elapsed_s = record.elapsed_s(now if fresh else record.seen_at)
    created_at = unix_seconds(record.created_at)
    return record.varied_values | {
        "training": record.training_id,
        "state": str(record.state) if fresh else f"{record.state} ({when})",
        "site": record.site,
        "progress": progress(record),
        "left": time_left(record, now),
        "elapsed": "-" if elapsed_s is None else exact_span(round(elapsed_s)),
        "loss": "-" if record.loss is None else readable(LOSS, record.loss),
        "why": reason_of(record, now),
        "name": record.name, "attempt": str(record.attempt), "job": record.job_id or "-",
        "created": time.strftime("%Y-%m-%d %H:%M", time.localtime(created_at))
        if created_at else "-",
        "tags": " ".join(record.tags), "varied": record.varied,
    }  # fmt: skip


def table(
    records: Sequence[Record], columns: int | None, now: float, *, fresh: bool = True,
    shape: Columns | None = None,
) -> list[Line]:  # fmt: skip
    """Return a head and a row for each training.

    Args:
        columns: No line is wider, and columns that say nothing are left out; None: a pipe, which
            gets all of them, and whole words but for a long `why`.
        shape: Which columns there are.
    """
    shape = shape or Columns()
    names = shape.names(records)
    metrics = shape.metrics(records)
    rows = [cells(record, now, fresh=fresh) | shape.values(record, metrics) for record in records]
    rows = [{name: row.get(name, "-") for name in names} for row in rows]
    widths = _widths(names, rows, columns, keeps_all=bool(shape.wanted))
    lines = [_row({name: name for name in widths}, widths, BOLD)]
    for record, row in zip(records, rows, strict=True):
        lines.append(_row({name: row[name] for name in widths}, widths, 0, record.state))
    return lines if columns is None else [line.fitted(columns) for line in lines]


def _widths(
    names: Sequence[str], rows: Sequence[Mapping[str, str]], columns: int | None, *,
    keeps_all: bool,
) -> dict[str, int]:  # fmt: skip
    """Return the columns that are shown, and how wide each is."""
    widths = {name: max(map(width_of, [name, *(row[name] for row in rows)])) for name in names}
    if columns is None:
        return widths | ({"why": min(widths["why"], _WHY_IN_PIPE)} if "why" in widths else {})
    if not keeps_all:
        widths = {name: width for name, width in widths.items() if name in COLUMNS[:2]
                  or any(row[name] not in _UNKNOWN for row in rows)}  # fmt: skip
    widths = {n: min(_LONGEST.get(n, _LONGEST_CELL), width) for n, width in widths.items()}
    of_sweep = any(name not in COLUMNS for name in names)
    out = [] if keeps_all else list(_FIRST_OUT_OF_SWEEP if of_sweep else _FIRST_OUT)
    while (over := _least(widths) - columns) > 0:
        if out and (out[0] not in ("why", "progress") or not _shrink_id(widths, over, _LEAST_ID)):
            widths.pop(out.pop(0), None)
        elif not out:
            _shrink_id(widths, over, 8)
            break
    if "why" in widths:
        widths["why"] = max(0, columns - _total(widths | {"why": 0}))
    return widths


def _shrink_id(widths: dict[str, int], by: int, least: int) -> bool:
    """Make the column of ids narrower; return whether that was possible."""
    before = widths.get("training", 0)
    if before <= least:
        return False
    widths["training"] = max(least, before - by)
    return True


def _least(widths: Mapping[str, int]) -> int:
    why = {"why": min(_LEAST_WHY, widths["why"])} if "why" in widths else {}
    return _total({**widths, **why})


def _row(
    row: Mapping[str, str], widths: Mapping[str, int], style: int, state: State | None = None
) -> Line:
    line = Line()
    for name, text in row.items():
        line.add("  " if line.pieces else "")
        own = TONES[state.tone] if state and name == "state" else style
        shown = shortened(text, widths[name]) if name == "training" else text
        line.pieces += Line().add(shown, own).padded(widths[name]).pieces
    return line


def _total(widths: Mapping[str, int]) -> int:
    return sum(width + 2 for width in widths.values()) - 2


def frame(
    records: Sequence[Record], trouble: dict[str, str], columns: int, rows: int, now: float,
    shape: Columns | None = None,
) -> list[Line]:  # fmt: skip
    """Return a picture of so many lines: the trainings, and which sites do not answer."""
    open_ = sum(not record.state.final for record in records)
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    head = Line().add(f"{counted(len(records), 'training')}, {open_} open", BOLD)
    head.add(f" · {clock} · q leaves", DIM)
    problems = [Line().add(f"{site}: {why}", YELLOW) for site, why in trouble.items()]
    room = max(1, rows - 3 - len(problems))
    more = len(records) - room
    shown = records if more <= 0 else records[: room - 1]
    lines = [*problems, Line(), *table(shown, columns, now, shape=shape)]
    if more > 0:
        lines.append(Line().add(f"and {len(records) - len(shown)} more", DIM))
    return page([head], lines, "", columns, rows)

"""Print and write metrics: tidy rows, event files, Parquet."""

from __future__ import annotations

import csv
import math
import re
import struct
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote

from dlctl.contract.ground.protobuf import block, record, varint
from dlctl.contract.ground.safe_text import cells_for
from dlctl.contract.measured.utilisation import maximum
from dlctl.contract.metrics import NO_STEP, Source
from dlctl.errors import Misused, ResultsError
from dlctl.series.curve import Curve
from dlctl.series.merged import Entry, by_group
from dlctl.series.readable import readable
from dlctl.series.run import Run

COLUMNS = ("training", "attempt", "learner", "source", "group", "step", "epoch", "time", "name",
           "value")  # fmt: skip
Row = tuple[str, int, int, str, str, int | None, int | None, float | None, str, float | str | None]
_NODE = Source.NODE.value
_TAKEN = re.compile(r"learner-\d+|node", re.IGNORECASE)
"""Folders of learners and of what nodes measure."""
_NAME_WIDTH = 100
"""The longest name in the table."""
_LONGEST_NAME_BYTES = 200
_EVENT_VERSION = b"\x1a\x0dbrain.Event:2"


def chosen(entries: Iterable[Entry], since_step: int, names: str | None) -> Iterator[Entry]:
    """Yield the entries from a step on, one for each group; of those only values that are wanted.

    What has no step is kept.

    Args:
        names: A regular expression, searched in `name`, `group/name` and `group_name`; events have
            no name.

    Raises:
        Misused: `names` is no regular expression.
    """
    try:
        wanted = re.compile(names) if names else None
    except re.error as error:
        raise Misused(f"{names!r} is no regular expression, such as 'loss|acc': {error}") from error
    for whole in entries:
        if whole.line.step != NO_STEP and whole.line.step < since_step:
            continue
        for entry in by_group(whole):
            line = entry.line
            if wanted is None:
                yield entry
                continue
            kept = {n: v for n, v in line.values.items() if _matches(wanted, line.group, n)}
            texts = {n: v for n, v in line.texts.items() if _matches(wanted, line.group, n)}
            if (kept or texts) and not line.event:
                yield Entry(entry.origin, replace(line, values=kept, texts=texts))


def _matches(wanted: re.Pattern[str], group: str, name: str) -> bool:
    whole = (f"{group}/{name}", f"{group}_{name}") if group else ()
    return any(wanted.search(text) for text in (name, *whole))


def rows(training_id: str, entries: Iterable[Entry]) -> Iterator[Row]:
    """Yield a row for each value."""
    for entry in (each for whole in entries for each in by_group(whole)):
        line, origin = entry.line, entry.origin
        if line.event:
            continue
        step = None if line.step == NO_STEP else line.step
        for name, value in (line.values | line.texts).items():
            yield (training_id, origin.attempt, origin.learner, origin.source.value, line.group,
                   step, line.epoch, line.time, name, value)  # fmt: skip


def print_csv(some: Iterable[Row], stream: TextIO | None = None, head: bool = True) -> None:
    """Print rows as CSV, at once; a value that is no number is `nan`."""
    stream = stream or sys.stdout
    writer = csv.writer(stream, lineterminator="\n")
    if head:
        writer.writerow(COLUMNS)
    for row in some:
        cells = ["" if cell is None else cell for cell in row[:-1]]
        cells.append("nan" if row[-1] is None else row[-1])
        writer.writerow(cells_for(stream, cells))
    stream.flush()


def write_tensorboard(folder: Path, found: dict[str, Sequence[Entry]]) -> list[Path]:
    """Write a folder of event files for each training and group; return the files."""
    written = []
    for training_id, entries in found.items():
        points: dict[tuple[str, ...], list[tuple[float, int, str, float]]] = defaultdict(list)
        for row in rows(training_id, entries):
            _, _, learner, source, group, step, _, time, name, value = row
            if step is None or isinstance(value, str):
                continue
            parts = [training_id, f"learner-{learner}" if learner else "",
                     source if source == Source.NODE.value else "", folder_of(group)]  # fmt: skip
            number = float("nan") if value is None else float(value)
            points[tuple(filter(None, parts))].append((time or 0.0, step, name, number))
        for place, some in sorted(points.items()):
            began_at = some[0][0]
            inner = folder.joinpath(*place)
            path = inner / f"events.out.tfevents.{began_at:.0f}.dlctl"
            write_events(path, began_at, some)
            written.append(path)
    return written


def scalar_event(time: float, step: int, tag: str, value: float) -> bytes:
    """Return an event that holds one value; time in Unix seconds."""
    scalar = block(1, tag.encode()) + b"\x15" + struct.pack("<f", _single(value))
    head = b"\x09" + struct.pack("<d", time) + b"\x10" + varint(max(0, step))
    return head + block(5, block(1, scalar))


def _single(value: float) -> float:
    """Return a value that a float of 32 bits can hold."""
    return value if abs(value) < 3.4e38 or value != value else math.copysign(math.inf, value)


def write_events(
    path: Path, began_at: float, points: Iterable[tuple[float, int, str, float]]
) -> None:
    """Write an event file of TensorBoard: (time, step, tag, value) each, as protobufs in TFRecords.

    Args:
        began_at: Unix seconds, of the file's first record.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(record(b"\x09" + struct.pack("<d", began_at) + _EVENT_VERSION))
        for time, step, tag, value in points:
            file.write(record(scalar_event(time, step, tag, value)))


def folder_of(group: str) -> str:
    """Return the name of a group's folder: different groups have different ones.

    Characters that a file's name can't have everywhere are written as `%2F`.
    """
    if not group:
        return ""
    name = "".join(c if c.isalnum() or c in "_-. " else quote(c, safe="") for c in group)
    if name[0] in ". " or _TAKEN.fullmatch(name):
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if len(name.encode()) <= _LONGEST_NAME_BYTES:
        return name
    return f"{name.encode()[:100].decode(errors='ignore')}%{sha256(group.encode()).hexdigest()}"


def write_parquet(path: Path, some: Iterable[Row]) -> int:
    """Write rows as Parquet; return their number. Texts are in a column of their own.

    Raises:
        ResultsError: pyarrow is not installed here.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ResultsError(
            "--export parquet needs the package pyarrow, which this Python lacks",
            hint=f"{sys.executable} -m pip install pyarrow",
        ) from error
    columns: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, "text")}
    for row in some:
        *head, value = row
        for name, cell in zip(COLUMNS, head, strict=False):
            columns[name].append(cell)
        is_text = isinstance(value, str)
        columns["value"].append(None if is_text else value)
        columns["text"].append(value if is_text else None)
    schema = pa.schema([
        ("training", pa.string()), ("attempt", pa.int32()), ("learner", pa.int32()),
        ("source", pa.string()), ("group", pa.string()), ("step", pa.int64()),
        ("epoch", pa.int64()), ("time", pa.float64()), ("name", pa.string()),
        ("value", pa.float64()), ("text", pa.string()),
    ])  # fmt: skip
    columns["value"] = [None if v is None else float(v) for v in columns["value"]]
    pq.write_table(pa.table(columns, schema=schema), path)
    return len(columns["step"])


def summary(entries: Iterable[Entry]) -> list[list[str]]:
    """Return the rows of a table: name, newest, best and its step, points, steps.

    Values have units; numbers stand at the right of their column. In place of a best value, what
    nodes measure has its maximum.
    """
    run = Run("")
    for entry in entries:
        if not entry.line.event:
            run.add(entry.origin, entry.line)
    beside = {k: replace(k, name=maximum(k.name)) for k in run.curves if k.source == _NODE}
    folded = {maxima for maxima in beside.values() if maxima in run.curves}
    table = [
        _summary_row(curve, run.curves.get(beside[key]) if key in beside else None)
        for key, curve in run.curves.items()
        if key not in folded
    ]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        [row[0], *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in table
    ]


def _short(name: str) -> str:
    """Return a name that leaves room for the other columns; the other formats have it whole."""
    return name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 1]}…"


def _summary_row(curve: Curve, maxima: Curve | None) -> list[str]:
    key, best = curve.key, curve.best()
    if maxima is not None:
        best = ends.highest if (ends := maxima.ends()) else None
    steps = [step for step in curve.points.step_last if step != NO_STEP]
    between = f"{min(steps):,.0f} to {max(steps):,.0f}" if steps else "-"
    return [
        _short(" ".join(key.shown.split())), readable(key.name, curve.last),
        "-" if best is None else f"{'max ' if maxima else ''}{readable(key.name, best[1])}",
        "-" if best is None or best[0] == NO_STEP else f"{best[0]:,.0f}", f"{len(curve):,}",
        between,
    ]  # fmt: skip

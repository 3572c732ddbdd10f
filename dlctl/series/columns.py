"""What was measured as columns of one length, which numpy and pandas take as they are."""

from __future__ import annotations

from collections.abc import Iterable
from math import nan
from typing import TYPE_CHECKING, Any

from dlctl.contract.metrics import NO_STEP
from dlctl.series.merged import by_group

if TYPE_CHECKING:
    from dlctl.series.merged import Entry

_ABOUT = ("step", "epoch", "time", "attempt", "learner", "source")


class Columns(dict[str, list[Any]]):
    """Lists by name.

    `step`, `epoch`, `time` (Unix seconds), `attempt`, `learner` and `source` say where a row comes
    from. A value of a group has the group's name before its own, as in `validation/loss`.
    What was not measured is NaN, or None among texts.
    """

    def __repr__(self) -> str:
        rows = len(self.get("step", ()))
        return f"<{rows} rows of {', '.join(self)}>"


def columns_of(entries: Iterable[Entry]) -> Columns:
    """Return the columns of what was measured; events are left out."""
    found = Columns({name: [] for name in _ABOUT})
    rows: dict[tuple[object, ...], int] = {}
    absents: dict[str, float | None] = {}
    for entry in (each for whole in entries for each in by_group(whole)):
        line, origin = entry.line, entry.origin
        if line.event:
            continue
        key = (origin, line.step, line.epoch, line.time)
        if (row := rows.get(key)) is None:
            row = rows[key] = len(rows)
            step = None if line.step == NO_STEP else line.step
            about = (step, line.epoch, line.time, origin.attempt, origin.learner,
                     origin.source.value)  # fmt: skip
            for name, value in zip(_ABOUT, about, strict=True):
                found[name].append(nan if value is None else value)
        for values, absent in ((line.values, nan), (line.texts, None)):
            for name, value in values.items():
                full = f"{line.group}/{name}" if line.group else name
                absents.setdefault(full, absent)
                column = found.setdefault(full, [])
                column += [absent] * (row + 1 - len(column))
                column[row] = absent if value is None else value
    for full, absent in absents.items():
        found[full] += [absent] * (len(rows) - len(found[full]))
    return found

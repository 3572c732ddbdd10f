"""One list of records over all attempts and sources: as `dlctl metrics` prints it, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf, nan
from typing import Any

from dlctl.contract.metrics import NO_STEP, SUBID, EventKind, MetricsLine, Source
from dlctl.series.curve import key_of
from dlctl.series.replays import Origin, Replays


@dataclass(frozen=True)
class Entry:
    """A line, and where it comes from."""

    origin: Origin
    line: MetricsLine

    def plain(self) -> dict[str, Any]:
        """Return the record as `--json` prints it; a value that is null is no number."""
        line, origin = self.line, self.origin
        return {
            "step": None if line.step == NO_STEP else line.step, "epoch": line.epoch,
            "time": line.time, "attempt": origin.attempt, "learner": origin.learner,
            "source": origin.source.value, "group": line.group,
            "kind": (line.kind or "event") if line.event else "scalar",
            **({"event": line.event} if line.event else {}),
            "values": {**line.values, **line.texts},
        }  # fmt: skip


def by_group(entry: Entry) -> Iterator[Entry]:
    """Yield an entry for each group of a line's values, with the names that curves have.

    A line's `validation_loss` becomes the `loss` of the group `validation`. The run that a value is
    of, among several in one file, stands before its group.
    """
    line, origin = entry.line, entry.origin
    if line.event:
        yield entry
        return
    found: dict[str, MetricsLine] = {}
    for name in [*line.values, *line.texts]:
        if name == SUBID:
            continue
        key = key_of(origin.source, origin.learner, line.series_group, name)
        mine = found.setdefault(key.group, replace(line, group=key.group, values={}, texts={}))
        if name in line.values:
            mine.values[key.name] = line.values[name]
        else:
            mine.texts[key.name] = line.texts[name]
    yield from (Entry(origin, mine) for mine in found.values())


_LASTING = (EventKind.BEGIN.value, EventKind.VERDICT.value)


class Merger:
    """Keeps the entries that count."""

    def __init__(self) -> None:
        self._replays = Replays()
        self._entries: list[Entry] = []
        self._steps: dict[tuple[Origin, str], dict[str, int]] = {}
        """The newest step of each series, by file, group and name."""

    def add(self, origin: Origin, line: MetricsLine) -> bool:
        """Take in a line; return whether it counts."""
        cut = self._replays.cut(origin, line)
        if cut is None:
            return False
        if cut < inf:
            everything = self._replays.replaces_all(line)
            self._entries = [
                e for e in self._entries
                if not self._is_replaced(e, cut, origin, None if everything else line.series_group)
            ]  # fmt: skip
        self._heed_return(origin, line)
        self._entries.append(Entry(origin, line))
        return True

    def _heed_return(self, origin: Origin, line: MetricsLine) -> None:
        """Drop what a program measured of later steps, in the series in which it has gone back."""
        if line.event or line.step == NO_STEP or origin.source is Source.NODE:
            return
        series = origin, line.series_group
        steps = self._steps.setdefault(series, {})
        back = {name for name in line.values if line.step < steps.get(name, NO_STEP)}
        steps.update(dict.fromkeys(line.values, line.step))
        if back:
            kept = (_without(entry, series, line.step, back) for entry in self._entries)
            self._entries = [entry for entry in kept if entry is not None]

    @staticmethod
    def _is_replaced(entry: Entry, cut: float, by: Origin, group: str | None) -> bool:
        known, line = entry.origin, entry.line
        if known.source is Source.NODE or line.kind in _LASTING or line.step <= cut:
            return False
        mine = (known.learner, known.source, line.series_group) == (by.learner, by.source, group)
        return known.attempt < by.attempt and (group is None or mine)

    def entries(self) -> list[Entry]:
        """Return all entries: by attempt and learner, each file's in their order."""
        order = list(Source)
        return sorted(
            self._entries,
            key=lambda e: (e.origin.attempt, e.origin.learner, order.index(e.origin.source)),
        )


def _without(entry: Entry, series: tuple[Origin, str], step: int, names: set[str]) -> Entry | None:
    """Return an entry without what it has of some series from a step on; None if that is all."""
    line = entry.line
    of_others = (entry.origin, line.series_group) != series or line.step < step
    if of_others or line.event or not names & line.values.keys():
        return entry
    values = {name: value for name, value in line.values.items() if name not in names}
    if not values and not line.texts.keys() - {SUBID}:
        return None
    return Entry(entry.origin, replace(line, values=values))


def merge(lines: Iterable[tuple[Origin, MetricsLine]]) -> list[Entry]:
    """Return the entries that count."""
    merger = Merger()
    for origin, line in lines:
        merger.add(origin, line)
    return merger.entries()


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

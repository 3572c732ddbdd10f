"""`dlctl list --watch`: a table that stays new on a terminal, a line for each change in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dlctl.cli import output
from dlctl.cli.common import NOTHING
from dlctl.terminal.trainings import frame, reason_of, table

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.outputs.looks import Looks
    from dlctl.record import Record, RecordStore
    from dlctl.service.client import Client
    from dlctl.terminal.text import Line

_SLOW_S, _FAST_S = 5.0, 1.0


class _StateOnly:
    """Brings no more than the state, which a look asks for anyway."""

    def __init__(self, record: Record) -> None:
        pass

    def refresh(self, session: Session, record: Record) -> bool:  # noqa: ARG002
        return False


class Watched:
    """The trainings that fit, those that come meanwhile, too; the open ones are asked for.

    Args:
        fits: whether a training is meant, whatever its state.
        shown: whether it is shown.
    """

    def __init__(
        self,
        looking: Looks[_StateOnly],
        store: RecordStore,
        fits: Callable[[Record], bool],
        shown: Callable[[Record], bool],
    ) -> None:
        self.looking, self._store, self._fits, self._shown = looking, store, fits, shown
        self._known: dict[str, Record] = {}
        self._take_in()

    @property
    def ended(self) -> bool:
        """Return whether all trainings have ended."""
        return self.looking.ended

    @property
    def records(self) -> list[Record]:
        """Return what is shown, newest first."""
        return [record for record in reversed(self._known.values()) if self._shown(record)]

    def look(self) -> set[str]:
        """Ask the sites; return the ids of trainings of which anything is new."""
        found = self._take_in()
        found |= self.looking.look()
        for training_id, record in self.looking.records.items():
            if training_id in self._known:
                self._known[training_id] = record
        return found

    def _take_in(self) -> set[str]:
        """Read the record: other commands may have added and deleted trainings, or resumed one."""
        meant = {r.training_id: r for r in self._store.all() if self._fits(r)}
        changed = set(self._known) ^ set(meant)
        for training_id in set(self.looking.records) - set(meant):
            del self.looking.records[training_id], self.looking.readers[training_id]
        for training_id, record in meant.items():
            asked = self.looking.records.get(training_id)
            if record.state.final or (asked is not None and asked.attempt >= record.attempt):
                continue
            self.looking.records[training_id] = record
            self.looking.readers.setdefault(training_id, _StateOnly(record))
        self._known = {i: self.looking.records.get(i, record) for i, record in meant.items()}
        return changed


def watch_list(
    mine: Client,
    fits: Callable[[Record], bool],
    shown: Callable[[Record], bool],
    *,
    as_json: bool,
) -> None:
    """Show the trainings until `q` or Ctrl-C; in a pipe until all have ended."""
    with mine.looks([], _StateOnly, quiet_s=_SLOW_S) as looking:
        watched = Watched(looking, mine.store, fits, shown)
        if sys.stdout.isatty() and sys.stdin.isatty() and not as_json:
            _on_terminal(watched)
        else:
            _in_pipe(watched, as_json=as_json)


class _View:
    paused = False


def _on_terminal(watched: Watched) -> None:
    import shutil

    from dlctl.terminal.watch import Background, colours, draw_until_left

    def draw(records: list[Record], view: _View, columns: int, rows: int) -> list[Line]:  # noqa: ARG001
        return frame(records, watched.looking.trouble, columns, rows, time.time())

    background = Background(watched, lambda: watched.records, watched.records)
    try:
        draw_until_left(background, _View(), draw, lambda view, key, records: view)  # noqa: ARG005
    finally:  # the picture is gone with its screen
        columns = shutil.get_terminal_size().columns
        output.raw("".join(
            f"{line.render(colours())}\n" for line in table(watched.records, columns, time.time())
        ))  # fmt: skip


def _in_pipe(watched: Watched, *, as_json: bool) -> None:
    told: dict[str, tuple[str, str]] = {}
    pause_s = _FAST_S
    while True:
        found = watched.look()
        for record in watched.records:
            now = (str(record.state), record.reason)
            if told.get(record.training_id) != now:
                told[record.training_id] = now
                _tell(record, as_json=as_json)
        if watched.ended:
            return output.note("" if told else NOTHING)
        pause_s = _FAST_S if found else min(_SLOW_S, pause_s * 1.5)
        time.sleep(pause_s)


def _tell(record: Record, *, as_json: bool) -> None:
    if as_json:
        output.json_line(record)
        return
    now = time.time()
    why = reason_of(record, now)
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    output.line(f"{clock} {record.training_id} {record.state}{f': {why}' if why else ''}")
    sys.stdout.flush()

"""Watch a search: look, draw, heed keys, until it has ended or somebody leaves."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlctl.contract import State
from dlctl.errors import RecordError
from dlctl.live.sites import live_of
from dlctl.search.overview import SearchReader
from dlctl.search.summary import whole
from dlctl.terminal.search_frame import Shown, View, frame, trial_line
from dlctl.terminal.text import texts
from dlctl.terminal.watch import draw_until_left

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore

_ONCE_ROWS = 30
Write = Callable[[str], None]
WriteJson = Callable[[dict[str, Any]], None]


class Watched:
    """A search that is kept new."""

    def __init__(
        self, store: RecordStore, open_site: Callable[[str], Session], record: Record
    ) -> None:
        self._reader = SearchReader(record)
        self.live = live_of(store, open_site, [record], self._read)

    def _read(self, session: Session, records: list[Record]) -> set[str]:
        return {r.training_id for r in records if self._reader.refresh(session, r)}

    def shown(self) -> Shown:
        """Return what is known of the search."""
        (record,), seen_at = self.live.records, self._reader.seen_at
        why = self.live.trouble(record, seen_at, "what is shown is", time.time())
        try:
            return Shown(record, self._reader.overview, why)
        except RecordError as error:
            return Shown(record, None, why or error.message)


def watch_search_on_terminal(watched: Watched) -> None:
    """Draw until `q` or Ctrl-C.

    Raises:
        DlctlError: a site can't be reached, and waiting would not help.
    """
    watched.live.look()
    draw_until_left(
        watched.live, watched.shown, View(),
        lambda now, view, columns, rows: frame(now, view, columns, rows, time.time()),
        lambda view, key, _: view.pressed(key),
    )  # fmt: skip


def watch_search_once(
    watched: Watched, columns: int, write: Write, write_json: WriteJson | None
) -> None:
    """Print one picture, or the state and the overview as an object."""
    watched.live.look()
    now = watched.shown()
    if write_json is not None:
        found = None if now.overview is None else whole(now.overview, now.record)
        overview = None if found is None else dataclasses.asdict(found)
        return write_json(_plain_state(now) | {"overview": overview})
    return write("\n".join(texts(frame(now, View(), columns, _ONCE_ROWS, time.time(),
                                keys=False))) + "\n")  # fmt: skip


def watch_search_in_pipe(watched: Watched, write: Write, write_json: WriteJson | None) -> None:
    """Print a line for each trial that has ended, and for each change of state, until the end.

    Args:
        write_json: takes objects; None: lines of text are written.
    """
    printed, state, best = 0, "", -1
    for _ in watched.live.looks():
        now = watched.shown()
        line = f"{now.record.training_id} {now.record.state}"
        is_done = now.record.state is State.COMPLETED  # then the reason is the hub's exit code
        if why := now.trouble or ("" if is_done else now.record.reason):
            line += f": {why}"
        if line != state:
            state = line
            if write_json is None:
                write(f"{line}\n")
            else:
                write_json(_plain_state(now))
        if now.overview is not None:
            trials = now.overview.trials
            steps = {each.number for each in trials.best_over_time()}
            for number in trials.order[printed:]:
                row = trials.rows[number]
                best = number if number in steps else best
                if write_json is None:
                    write(trial_line(row, trials, best == number) + "\n")
                else:
                    write_json({"search": now.record.training_id, "event": "trial",
                                "trial": dataclasses.asdict(row)})  # fmt: skip
            printed = len(trials.order)


def _plain_state(now: Shown) -> dict[str, Any]:
    """Return the state of a search, as JSON has it."""
    return {"search": now.record.training_id, "event": "state", "state": str(now.record.state),
            "reason": now.record.reason, "trouble": now.trouble}  # fmt: skip

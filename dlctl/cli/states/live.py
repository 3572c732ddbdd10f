"""`dlctl list --watch`: a table that stays new on a terminal, a line for each change in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from dlctl.cli import output
from dlctl.cli.common import NOTHING
from dlctl.live.sites import Live
from dlctl.terminal.trainings import frame, reason_of, table
from dlctl.terminal.words import Still

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.service.client import Client
    from dlctl.terminal.text import Line

Fits = Callable[["Record"], bool]


def watch_list(mine: Client, fits: Fits, shown: Fits, *, as_json: bool) -> None:
    """Show trainings until `q` or Ctrl-C; in a pipe until all have ended.

    Trainings that come meanwhile are shown, too.

    Args:
        fits: whether a training is meant, whatever its state.
        shown: whether it is shown.
    """
    live = Live(mine.store, mine.open, lambda: list(filter(fits, mine.store.all())))
    with closing(live):
        if sys.stdout.isatty() and sys.stdin.isatty() and not as_json:
            _on_terminal(live, shown)
        else:
            _in_pipe(live, shown, as_json=as_json)


def _shown(live: Live, shown: Fits) -> list[Record]:
    """Return what is shown, newest first; of a silent site with the reason."""
    silent = dict(live.errors)  # threads change it
    return [
        replace(r, reason=f"{r.reason} [{silent[r.site].message}]".strip())
        if r.site in silent and not r.state.final else r
        for r in reversed(live.records) if shown(r)
    ]  # fmt: skip


def _on_terminal(live: Live, shown: Fits) -> None:
    import shutil

    from dlctl.terminal.watch import colours, draw_until_left

    def make() -> list[Record]:
        live.start()  # a site may be new
        return _shown(live, shown)

    def draw(records: list[Record], view: Still, columns: int, rows: int) -> list[Line]:  # noqa: ARG001
        trouble = {site: error.message for site, error in dict(live.errors).items()}
        return frame(records, trouble, columns, rows, time.time())

    try:
        draw_until_left(live, make, Still(), draw, lambda view, key, records: view)  # noqa: ARG005
    finally:  # the picture is gone with its screen
        columns = shutil.get_terminal_size().columns
        output.raw("".join(
            f"{line.render(colours())}\n"
            for line in table(_shown(live, shown), columns, time.time())
        ))  # fmt: skip


def _in_pipe(live: Live, shown: Fits, *, as_json: bool) -> None:
    told: dict[str, tuple[str, str]] = {}
    for _ in live.looks():
        for record in _shown(live, shown):
            now = (str(record.state), record.reason)
            if told.get(record.training_id) != now:
                told[record.training_id] = now
                _tell(record, as_json=as_json)
        if live.ended:
            break
    output.note("" if told else NOTHING)


def _tell(record: Record, *, as_json: bool) -> None:
    if as_json:
        output.json_line(record)
        return
    now = time.time()
    why = reason_of(record, now)
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    output.line(f"{clock} {record.training_id} {record.state}{f': {why}' if why else ''}")
    sys.stdout.flush()

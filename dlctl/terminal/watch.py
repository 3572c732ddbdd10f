"""Watch trainings: draw what is new, heed keys, until they have ended or somebody leaves."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from dlctl.live.sites import live_of
from dlctl.live.training import Training, read_details, read_news
from dlctl.terminal.frame import View, frame, metric_names
from dlctl.terminal.text import Line, texts
from dlctl.terminal.words import Shown, Still

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.live.sites import Live
    from dlctl.record import Record, RecordStore

F = TypeVar("F")
V = TypeVar("V", bound=Still)
_PIPE_EVERY_S = 5.0
_KEY_S = 0.25
_AGE_S = 5.0
"""The pause between two updates of ages while nothing else is new."""
_RESTS = 20
"""After a picture without news, a rest of so many times as long as it took."""


class Watched:
    """Trainings that are shown whole: states, metrics, learners, checkpoints, logs."""

    def __init__(
        self, store: RecordStore, open_site: Callable[[str], Session], records: Sequence[Record]
    ) -> None:
        self.trainings = {r.training_id: Training(r, keeps_log=True) for r in records}
        self.live = live_of(store, open_site, records, self._read)

    def _read(self, session: Session, records: list[Record]) -> set[str]:
        mine = [self.trainings[record.training_id] for record in records]
        for training, record in zip(mine, records, strict=True):
            training.record = record
        return read_news(session, mine) | read_details(session, mine)

    def shown(self, now: float | None = None) -> list[Shown]:
        """Return what is known of each training, with the ages of a time (Unix seconds)."""
        found, at = [], time.time() if now is None else now
        for record in self.live.records:
            each = self.trainings[record.training_id]
            learners = each.details.get("learners", [])
            why = self.live.trouble(record, each.metrics.seen_at, "the metrics are", at)
            with each.run() as run:
                found.append(Shown(record, run, each.insight(now), learners, list(each.lines),
                                   why or each.details.get("problem", "")))  # fmt: skip
        return found


def colours() -> bool:
    """Return whether standard output shows colours."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def watch_on_terminal(watched: Watched, now: Callable[[], float] = time.time) -> None:
    """Draw until `q` or Ctrl-C; what the cache holds of all trainings is drawn at once.

    Raises:
        DlctlError: a site can't be reached, and waiting would not help.
    """
    trainings = watched.trainings.values()
    if not all(each.metrics.seen_at for each in trainings):
        watched.live.look()

    def draw(frames: list[Shown], view: View, columns: int, rows: int) -> list[Line]:
        with ExitStack() as locks:  # nothing grows meanwhile
            for each in trainings:
                locks.enter_context(each.metrics.lock)
            return frame(frames, view, columns, rows, now())

    draw_until_left(
        watched.live, watched.shown, View(), draw,
        lambda view, key, frames: view.pressed(key, len(metric_names(frames)), len(frames)),
    )  # fmt: skip


def draw_until_left(
    live: Live, make: Callable[[], F], view: V, draw: Callable[[F, V, int, int], list[Line]],
    pressed: Callable[[V, str, F], V],
) -> None:  # fmt: skip
    """Draw what is new until `q` or Ctrl-C; sites are asked in threads, so none delays a key.

    Args:
        make: returns what is to be drawn.
        draw: returns the lines of a frame for so many columns and rows.
        pressed: returns the view after a key.

    Raises:
        DlctlError: a site can't be reached, and waiting would not help.
    """
    from dlctl.terminal.screen import full_screen

    frames, size, drawn, due_at = make(), (0, 0), live.versions.newest, time.monotonic() + _AGE_S
    with full_screen(colours()) as screen:
        live.start()
        while True:
            live.check()
            began_at, newest = time.monotonic(), live.versions.newest
            if not view.paused and (newest != drawn or began_at >= due_at):
                frames, size, drawn = make(), (0, 0), newest
                now = time.monotonic()
                due_at = now + max(_AGE_S, _RESTS * (now - began_at))
            if size != screen.size or screen.is_lost:
                size = screen.size
                screen.show(draw(frames, view, *size))
            key = screen.key(_KEY_S)
            if key in ("q", "\x03"):
                return
            if key:
                view, size = pressed(view, key, frames), (0, 0)


def watch_in_pipe(
    watched: Watched, write: Callable[[str], None], columns: int, follow: bool
) -> None:
    """Print a frame as plain text, once or at each change until all trainings have ended.

    That something has become older is no change.
    """
    began_at, before = time.time(), [""]
    for _, is_last in watched.live.looks(_PIPE_EVERY_S):
        same = _whole(watched.shown(began_at), columns, began_at)
        # After an end, the last look has what came at the end.
        if same != before and (is_last or not watched.live.ended or not follow):
            now = time.time()
            write("\n".join(_whole(watched.shown(now), columns, now)) + "\n")
            before = same
        if not follow:
            return


def _whole(frames: Sequence[Shown], columns: int, now: float) -> list[str]:
    """Return a frame as high as it needs to be, without empty lines at its end."""
    return texts(frame(frames, View(), columns, 32 + len(frames), now, keys=False))

"""Watch trainings: look, draw, heed keys, until they have ended or somebody leaves."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from dlctl.series.smooth import Smoother
from dlctl.terminal.frame import View, frame, metric_names
from dlctl.terminal.text import Line
from dlctl.terminal.words import Shown
from dlctl.units import format_span

if TYPE_CHECKING:
    from dlctl.outputs.looks import Looks
    from dlctl.outputs.training_reader import TrainingReader
    from dlctl.record import Record

F = TypeVar("F")
_FAST_S, _SLOW_S = 1.0, 5.0
"""How often to look: while something happens, and while nothing does."""
_KEY_S = 0.25
_RESTS = 20
"""What a picture without news costs, it rests so many times as long."""


def next_pause_s(pause_s: float, found: bool, ended: bool = False) -> float:
    """Return how long to wait before the next look, of which a quiet training needs few."""
    if ended:
        return _SLOW_S
    return max(_FAST_S, pause_s / 2) if found else min(_SLOW_S, pause_s * 1.5)


def shown(
    looking: Looks[TrainingReader], now: float | None = None, *, asked: bool = True
) -> list[Shown]:
    """Return what is known of each training, with the ages of a time (Unix seconds).

    Args:
        asked: whether the sites were asked; otherwise all is from the cache.
    """
    at = time.time() if now is None else now

    def trouble(record: Record, reader: TrainingReader) -> str:
        why = looking.trouble.get(record.site, "") if asked else f"asking {record.site}"
        if why and reader.seen_at:
            why = f"{why}; the metrics are as of {format_span(max(0.0, at - reader.seen_at))} ago"
        return why or reader.problem

    return [
        Shown(
            record, reader.run, reader.insight(record, now), reader.learners, list(reader.lines),
            trouble(record, reader),
        )
        for record, reader in zip(looking.records.values(), looking.readers.values(), strict=True)
    ]  # fmt: skip


def colours() -> bool:
    """Return whether standard output shows colours."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


@contextmanager
def _held(looking: Looks[TrainingReader]) -> Iterator[None]:
    """Let nothing grow meanwhile."""
    with ExitStack() as locks:
        for reader in looking.readers.values():
            locks.enter_context(reader.lock)
        yield


class Looking(Protocol):
    """What asks the sites, as `Looks` does."""

    @property
    def ended(self) -> bool:
        """Return whether all trainings have ended."""

    def look(self) -> set[str]:
        """Ask all sites; return the ids of trainings of which anything is new."""


class Background(Generic[F]):
    """Looks in a thread of its own, so that a slow site delays no key.

    Args:
        make: returns what is to be drawn.
        first: what is drawn before the sites were asked; None: they were asked already.
    """

    def __init__(self, looking: Looking, make: Callable[[], F], first: F | None = None) -> None:
        self.looking, self._make = looking, make
        self.news, self.stop = Event(), Event()
        self.error: Exception | None = None
        self.due_at = 0.0
        """When to tell the ages anew."""
        self.frames = make() if first is None else first
        self.thread = Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        pause_s, first = _FAST_S, True
        while not self.stop.is_set():
            try:
                found = self.looking.look()
            except Exception as error:  # without it the picture would stand still for ever
                self.error = error
                self.news.set()
                return
            began_at = time.monotonic()
            if first or found or began_at >= self.due_at:  # without news, too: ages grow
                self.frames = self._make()
                self.news.set()
                now = time.monotonic()
                self.due_at = now + _RESTS * (now - began_at)
            first = False
            pause_s = next_pause_s(pause_s, bool(found), self.looking.ended)
            self.stop.wait(pause_s)


def watch_on_terminal(looking: Looks[TrainingReader], now: Callable[[], float] = time.time) -> None:
    """Draw until `q` or Ctrl-C; what the cache holds of all trainings is drawn at once.

    Raises:
        DlctlError: a site can't be reached, and waiting would not help.
    """
    if not (kept := all(reader.seen_at for reader in looking.readers.values())):
        looking.look()
    first = shown(looking, asked=False) if kept else None
    smoother = Smoother()

    def draw(frames: list[Shown], view: View, columns: int, rows: int) -> list[Line]:
        with _held(looking):
            return frame(frames, view, columns, rows, now(), smoother=smoother)

    draw_until_left(
        Background(looking, lambda: shown(looking), first), View(), draw,
        lambda view, key, frames: view.pressed(key, len(metric_names(frames)), len(frames)),
    )  # fmt: skip


class Pausable(Protocol):
    """What a person chose to see."""

    @property
    def paused(self) -> bool:
        """Return whether news waits."""


V = TypeVar("V", bound=Pausable)


def draw_until_left(
    background: Background[F], view: V, draw: Callable[[F, V, int, int], list[Line]],
    pressed: Callable[[V, str, F], V],
) -> None:  # fmt: skip
    """Draw what the background finds until `q` or Ctrl-C, and end it.

    Args:
        draw: returns the lines of a frame for so many columns and rows.
        pressed: returns the view after a key.

    Raises:
        DlctlError: a site can't be reached, and waiting would not help.
    """
    from dlctl.terminal.screen import full_screen

    try:
        with full_screen(colours()) as screen:
            frames, size = background.frames, (0, 0)
            while True:
                if background.error is not None:
                    raise background.error
                if background.news.is_set() and not view.paused:
                    background.news.clear()
                    frames, size = background.frames, (0, 0)
                if size != screen.size or screen.is_lost:
                    size = screen.size
                    screen.show(draw(frames, view, *size))
                key = screen.key(_KEY_S)
                if key in ("q", "\x03"):
                    return
                if key:
                    view, size = pressed(view, key, frames), (0, 0)
    finally:
        background.stop.set()
        background.thread.join(timeout=5)


def watch_in_pipe(
    looking: Looks[TrainingReader], write: Callable[[str], None], columns: int, follow: bool
) -> None:
    """Print a frame as plain text, once or at each change until all trainings have ended.

    That something has become older is no change.
    """
    began_at, before = time.time(), [""]
    while True:
        ended = looking.ended
        looking.look()
        same = _whole(shown(looking, began_at), columns, began_at)
        is_last = ended or not looking.ended or not follow  # the next one has what came at the end
        if same != before and is_last:
            now = time.time()
            write("\n".join(_whole(shown(looking, now), columns, now)) + "\n")
            before = same
        if not follow or ended:
            return
        time.sleep(_SLOW_S)


def _whole(frames: Sequence[Shown], columns: int, now: float) -> list[str]:
    """Return a frame as high as it needs to be, without empty lines at its end."""
    lines = frame(frames, View(), columns, 32 + len(frames), now, keys=False)
    texts = [line.render(False) for line in lines]
    while texts and not texts[-1]:
        texts.pop()
    return texts

"""The line below a followed log that shows how far the training is, on a terminal only."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TextIO, TypeVar

from dlctl.contract import State
from dlctl.contract.ground.safe_text import printable
from dlctl.units import format_duration

if TYPE_CHECKING:
    from dlctl.record import Record

P = TypeVar("P")

BAR = 30


class ProgressLine:
    """Redraws the last line of a terminal; prints nothing to anything else."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self.active = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._text = ""
        self._first: tuple[float, float] | None = None
        """The share that was done at first, and when."""
        self._seen: dict[State, float] = {}
        """When each state without progress was first seen."""

    def update(self, record: Record) -> None:
        """Show how far a training is; if it tells nothing, its state and for how long it was seen.

        One that waits in the queue or has ended shows nothing.
        """
        state, now = record.state, time.monotonic()
        if state.final or state in (State.QUEUED, State.PENDING):
            self.clear()
            self._text, self._first, self._seen = "", None, {}
        elif state is not State.TRAINING or record.done is None:
            began = self._seen.setdefault(state, now)
            self._text = f"{state}  {format_duration(round(now - began))}"
        else:
            if self._first is None or record.done < self._first[0]:
                self._first = record.done, now
            self._text = text_of(record, self._first, now)
        self._draw()

    def below(self, pieces: Iterable[P]) -> Iterator[P]:
        """Yield each piece with the line cleared, so that it can be printed; draw it again."""
        try:
            for piece in pieces:
                self.clear()
                yield piece
                self._draw()
        finally:
            self.clear()

    def _draw(self) -> None:
        if self.active and self._text:
            columns = shutil.get_terminal_size().columns
            self._write(f"\r\x1b[2K{printable(self._text)[: columns - 1]}")

    def clear(self) -> None:
        """Clear the line, so that something else can be printed."""
        if self.active and self._text:
            self._write("\r\x1b[2K")

    def _write(self, text: str) -> None:
        sys.stdout.flush()
        self._stream.write(text)
        self._stream.flush()


def bar(done: float, columns: int = BAR) -> str:
    """Return `[#####.....]` for a share from 0 to 1, with so many columns in the brackets."""
    full = int(columns * done)
    return f"[{'#' * full}{'.' * (columns - full)}]"


def text_of(record: Record, first: tuple[float, float], now: float) -> str:
    """Return `[#####.....]  50 %  epoch 3  step 120  about 1m20s left`."""
    done = record.done or 0.0
    parts = [f"{bar(done)} {100 * done:3.0f} %"]
    parts += [f"{name} {value}" for name, value in (("epoch", record.epoch), ("step", record.step))
              if value is not None]  # fmt: skip
    share, seconds = done - first[0], now - first[1]
    if share > 0 and seconds > 0 and done < 1:
        left_s = round(seconds / share * (1 - done))
        parts.append(f"about {format_duration(max(1, left_s))} left")
    return "  ".join(parts)

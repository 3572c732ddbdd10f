"""Follow a training: print its log as it grows above how far it is, and say how it ended."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TextIO, TypeVar

from dlctl.cli import output
from dlctl.contract import State
from dlctl.contract.ground.safe_text import printable
from dlctl.errors import TrainingFailed
from dlctl.service.describe import next_fetch
from dlctl.units import format_duration

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.logs.reader import LogPiece, LogReader
    from dlctl.logs.shown import ShownLog
    from dlctl.record import Record, RecordStore
    from dlctl.service.logs import LinesWanted


def follow(
    session: Session, record: Record, store: RecordStore, reader: LogReader | None = None,
    lines: LogLines | None = None,
) -> Record:  # fmt: skip
    """Print the log as it grows until the training ends; Ctrl-C leaves the training running.

    Args:
        reader: Where to begin; at the very beginning by default.
        lines: How to print; each line after its source by default.
    """
    from dlctl.service.bringing import follow as follow_log

    line = ProgressLine()
    try:
        return follow_log(
            session, record, store, line,
            lambda pieces: print_pieces(line.below(pieces), lines), reader,
            lambda _, known: line.update(known),
        )  # fmt: skip
    except KeyboardInterrupt:
        raise output.interrupted(
            f"stopped following; the training continues as {record.training_id}",
            f"dlctl logs --follow {record.training_id}",
        ) from None


def end_of_following(record: Record) -> None:
    """Say how the followed training ended; FAILED and CANCELLED give exit code 10.

    Raises:
        TrainingFailed
    """
    if record.state in (State.FAILED, State.CANCELLED):
        raise TrainingFailed(
            f"{record.training_id} {record.state}: {record.reason}",
            hint=record.hint or f"dlctl show {record.training_id}",
        )
    output.note(
        f"{record.training_id} {record.state}" + (f": {record.reason}" if record.reason else "")
    )
    if record.state is State.COMPLETED:
        output.hint(next_fetch(record))
    elif record.state is State.HALTED:
        output.hint(f"dlctl resume {record.training_id}")


_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
"""Of learners and servers, by their number; the job has none."""
_ORDERS = re.compile(r"\x1b\[[0-9;]*m")


class LogLines:
    """How lines of logs are printed.

    Args:
        as_json: as objects, with every byte that is text.
        prefix: each after its source.
        wanted: only those; all by default.
    """

    def __init__(
        self, *, as_json: bool = False, prefix: bool = True, wanted: LinesWanted | None = None
    ) -> None:
        from dlctl.service.logs import LinesWanted

        self._as_json, self._prefix, self._wanted = as_json, prefix, wanted or LinesWanted()
        self._pattern = self._wanted.pattern
        self._colours = output.has_colours()
        self._shown: dict[tuple[int, str], ShownLog] = {}
        self.whole = as_json or self._pattern is not None or bool(os.environ.get("DLCTL_DEBUG"))
        """Whether tracebacks are printed with all their lines."""

    def print(self, piece: LogPiece) -> int:
        """Print the lines of a piece; return their number."""
        from dlctl.logs.shown import ShownLog

        if self._as_json:
            about = {"attempt": piece.attempt, "source": piece.source}
            rows = [about | {"line": line} for line in self._wanted.of(piece)]
            output.json_line(*rows)
            return len(rows)
        key = piece.attempt, piece.source
        if key not in self._shown:
            self._shown[key] = ShownLog(self._colours)
        return self._write(piece.source, self._shown[key].lines(piece.content))

    def end(self) -> None:
        """Print what is left of lines whose end never came."""
        for (_, source), shown in self._shown.items():
            self._write(source, shown.rest())

    def _fits(self, line: str) -> bool:
        return self._pattern is None or bool(self._pattern.search(_ORDERS.sub("", line)))

    def _write(self, source: str, lines: list[str]) -> int:
        before = self._before(source)
        text = [f"{before}{line}\n" for line in lines if self._fits(line)]
        output.raw("".join(text))
        return len(text)

    def _before(self, source: str) -> str:
        if not self._prefix:
            return ""
        number = source.rpartition("-")[2]
        source = printable(source)
        if not self._colours or not number.isdecimal():
            return f"{source} | "
        return f"\033[{_COLOURS[int(number) % len(_COLOURS)]}m{source} |\033[0m "


def print_pieces(pieces: Iterable[LogPiece], lines: LogLines | None = None) -> int:
    """Print pieces of logs; return the number of lines.

    Tracebacks are shortened, unless `--debug`, `--json` or a pattern asks for single lines.
    """
    from dlctl.logs.shown import shortened

    lines = lines or LogLines()
    count = sum(lines.print(piece) for piece in (pieces if lines.whole else shortened(pieces)))
    lines.end()
    return count


P = TypeVar("P")

BAR = 30


class ProgressLine(output.Shown):
    """Redraws the last line of a terminal; prints nothing to anything else."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self.active = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._text = ""
        self._first: tuple[float, float] | None = None
        """The share that was done at first, and when."""
        self._seen: dict[State, float] = {}
        """When each state without progress was first seen."""

    def warn(self, text: str) -> None:
        """Say something above the line."""
        self.clear()
        output.warn(text)

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

"""The command logs; and following: the log as it grows above how far a training is."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TextIO, TypeVar

import typer

from dlctl.cli import output
from dlctl.cli.common import ID, TRIAL, check_trial, training
from dlctl.contract import State
from dlctl.contract.ground.safe_text import printable
from dlctl.errors import Misused, TrainingFailed
from dlctl.service.describe import loss_in_words, next_fetch, progress_in_words

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.logs.reader import LogPiece, LogReader
    from dlctl.logs.shown import ShownLog
    from dlctl.record import Record, RecordStore
    from dlctl.service.logs import LinesWanted


def complete_attempts(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the attempts that the local record knows, newest first, for shell completion."""
    from dlctl.errors import RecordError
    from dlctl.record import RecordStore

    try:
        newest = RecordStore().find(ctx.params.get("training_id")).attempt
    except RecordError:
        return []
    return [str(n) for n in range(newest, 0, -1) if str(n).startswith(incomplete)]


def logs(
    training_id: str | None = ID,
    stay: bool = typer.Option(False, "--follow", "-f", help="Stay and print new lines."),
    rank: str | None = typer.Option(
        None, "--rank", "--learner", "-l", metavar="N[,M]",
        help="Only these learners, such as 0, or 0,2-5.",
    ),
    attempt: int | None = typer.Option(
        None, "--attempt", min=1, autocompletion=complete_attempts, help="Only this attempt."
    ),
    since: str | None = typer.Option(
        None, "--since", metavar="AGE|TIME",
        help="Only lines written since then: 10m, 2h, 14:30, or 2026-01-31T14:30.",
    ),
    tail: int | None = typer.Option(
        None, "--tail", "-n", min=0,
        help="Only the last so many lines of each log, of the newest attempt unless --attempt "
        "names one.",
    ),
    grep: str | None = typer.Option(
        None, "--grep", "-g", metavar="RE",
        help="Of these lines only those that this regular expression fits.",
    ),
    trial: int | None = TRIAL,
    no_prefix: bool = typer.Option(False, "--no-prefix", help="Print no source before a line."),
    as_json: bool = typer.Option(False, "--json", help="Print each line as a JSON object."),
) -> None:  # fmt: skip
    """Print the logs, merged by time.

    `--follow` stays until the training, the search or its trial has ended. A lost connection is
    opened again. A progress bar is one line, in its last state. Tracebacks are shortened to the
    lines of your program; `--debug`, `--grep` and `--json` print all lines.

    Example: dlctl logs --follow --rank 0 --since 10m
    """
    from dlctl.lifecycle import refresh
    from dlctl.logs.reader import read
    from dlctl.service.logs import LinesWanted

    wanted = LinesWanted(rank, attempt, since, tail, grep)
    lines = LogLines(as_json=as_json, prefix=not no_prefix, wanted=wanted)
    with training(training_id) as (session, record, store):
        check_trial(record, trial)
        of_learners = (rank, attempt, since, tail) != (None,) * 4
        if trial is not None and of_learners:
            raise Misused("of a trial all lines are printed: leave --rank, --attempt, --since and "
                          "--tail out", option="--trial")  # fmt: skip
        if record.is_search and not of_learners:
            return _search_logs(session, record, store, trial, lines, stay)
        record, reader = wanted.reader(session, record, store)
        if stay and attempt in (None, record.attempt):
            return end_of_following(follow(session, record, store, reader, lines))
        with output.paged(not as_json):
            count = print_pieces(read(session.transport, reader), lines)
        if not count and tail != 0:
            _tell_nothing(refresh(session, [record], store)[0], rank, since or grep)
    return None


def _search_logs(
    session: Session, record: Record, store: RecordStore, trial: int | None, lines: LogLines,
    stay: bool,
) -> None:  # fmt: skip
    """Print the logs of hub, brokers, model and workers, or of one trial."""
    from dlctl.logs.reader import read
    from dlctl.search.logs import search_logs, trial_logs
    from dlctl.search.overview import SearchReader
    from dlctl.service.fetching import follow as follow_log

    search = SearchReader(record)
    search.refresh(session, record)
    if trial is None:
        reader = search_logs(record.job_dir)
        if stay:
            return end_of_following(follow(session, record, store, reader, lines))
    else:
        reader = trial_logs(record.job_dir, search.overview.trials.find(trial))
    if trial is not None and stay:

        def has_ended(stays: Session, known: Record) -> bool:
            search.refresh(stays, known)
            return bool(search.overview.trials.find(trial).outcome)

        follow_log(session, record, store, output.Shown(),
                   lambda pieces: print_pieces(pieces, lines), reader, has_ended)  # fmt: skip
        row = search.overview.trials.find(trial)
        output.note(f"trial {trial}: {row.outcome_words}{f': {row.error}' if row.error else ''}")
        return None
    with output.paged(not lines.as_json):
        count = print_pieces(read(session.transport, reader), lines)
    if not count:
        who = "" if trial is None else f"trial {trial} of "
        output.note(f"{who}{record.training_id} has printed nothing so far")
    return None


def _tell_nothing(record: Record, rank: str | None, chosen: str | None) -> None:
    from dlctl.record import GONE

    if record.is_gone:
        return output.note(f"{record.training_id} ({record.state}) has no logs: {GONE}")
    who = "" if rank is None else f"learner {rank} of "
    yet = "" if record.state.final else " yet"
    what = "has printed nothing" if chosen is None else "has printed no such line"
    return output.note(f"{who}{record.training_id} ({record.state}) {what}{yet}")


# Following --------------------------------------------------------------------------------------


def follow(
    session: Session, record: Record, store: RecordStore, reader: LogReader | None = None,
    lines: LogLines | None = None,
) -> Record:  # fmt: skip
    """Print the log as it grows until the training ends; Ctrl-C leaves the training running.

    Args:
        reader: Where to begin; at the very beginning by default.
        lines: How to print; each line after its source by default.
    """
    from dlctl.service.fetching import follow as follow_log

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
    elif record.state is State.HALTED and record.hint:
        output.advice(record.hint)


_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)
"""Colours of learners and servers, by their number; the job has none."""
_ORDERS = re.compile(r"\x1b\[[0-9;]*m")


class LogLines:
    """The style in which lines of logs are printed.

    Args:
        as_json: as objects, with every byte that is text.
        prefix: each after its source.
        wanted: only those; all by default.
    """

    def __init__(
        self, *, as_json: bool = False, prefix: bool = True, wanted: LinesWanted | None = None
    ) -> None:
        from dlctl.service.logs import LinesWanted

        self.as_json, self._prefix, self._wanted = as_json, prefix, wanted or LinesWanted()
        self._pattern = self._wanted.pattern
        self._colours = output.has_colours()
        self._shown: dict[tuple[int, str], ShownLog] = {}
        self.whole = as_json or self._pattern is not None or bool(os.environ.get("DLCTL_DEBUG"))
        """Print tracebacks with all their lines."""

    def print(self, piece: LogPiece) -> int:
        """Print the lines of a piece; return their number."""
        from dlctl.logs.shown import ShownLog

        if self.as_json:
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

    def warn(self, text: str) -> None:
        """Say something above the line."""
        self.clear()
        output.warn(text)

    def update(self, record: Record) -> None:
        """Show how far a training is; one that waits in the queue or has ended shows nothing."""
        if record.state.final or record.state in (State.QUEUED, State.PENDING):
            self.clear()
            self._text = ""
        else:
            self._text = text_of(record, time.time())
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


def text_of(record: Record, now: float) -> str:
    """Return `[#####.....]  50 %  epoch 3  step 120  loss 0.5  about 80 s left`.

    If a training tells nothing of its end, the state comes first, and how long it ran last.

    Args:
        now: Unix seconds.
    """
    from dlctl.series.readable import exact_span
    from dlctl.terminal.trainings import time_left

    is_known = record.state is State.TRAINING and record.done is not None
    parts = [bar(record.done or 0.0) if is_known else str(record.state)]
    parts += [*progress_in_words(record), *loss_in_words(record)]
    left, elapsed_s = time_left(record, now), record.elapsed_s(now)
    if left != "-":
        parts.append(f"about {left} left")
    elif elapsed_s is not None:
        parts.append(f"ran {exact_span(round(elapsed_s))}")
    return "  ".join(parts)

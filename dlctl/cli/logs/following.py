"""Follow a training: print its log as it grows above how far it is, and say how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.logs.printing import LogLines, print_pieces
from dlctl.cli.progress_line import ProgressLine
from dlctl.contract import State
from dlctl.errors import TrainingFailed
from dlctl.service.made import next_fetch

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.logs.reader import FollowsLogs
    from dlctl.record import Record, RecordStore


class _Above(output.Shown):
    """Says things above the line that shows how far the training is."""

    def __init__(self, line: ProgressLine) -> None:
        self._line = line

    def warn(self, text: str) -> None:
        self._line.clear()
        output.warn(text)


def follow(
    session: Session, record: Record, store: RecordStore, reader: FollowsLogs | None = None,
    lines: LogLines | None = None,
) -> Record:  # fmt: skip
    """Print the log as it grows until the training ends; Ctrl-C leaves the training running.

    Args:
        reader: Where to begin; at the very beginning by default.
        lines: How to print; each line after its source by default.
    """
    from dlctl.service.follow import follow as follow_log

    line = ProgressLine()
    try:
        return follow_log(
            session, record, store, _Above(line),
            lambda pieces: print_pieces(line.below(pieces), lines), reader,
            lambda _, known: line.update(known),
        )  # fmt: skip
    except KeyboardInterrupt:
        output.interrupted(f"stopped following; the training continues as {record.training_id}")
        output.hint(f"dlctl logs --follow {record.training_id}")
        raise typer.Exit(130) from None


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

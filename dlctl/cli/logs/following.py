"""Follow a training: print its log as it grows, say why there is none yet, and how it ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.logs.printing import LogLines, print_pieces
from dlctl.service.describe import unix_seconds
from dlctl.service.made import next_fetch

if TYPE_CHECKING:
    from dlctl.contract import State
    from dlctl.errors import TransportError
    from dlctl.lifecycle import Session
    from dlctl.logs.reader import FollowsLogs
    from dlctl.record import Record, RecordStore

_SENDING_S = 60.0
"""How long a submission may take before it counts as interrupted."""


def follow(
    session: Session,
    record: Record,
    store: RecordStore,
    reader: FollowsLogs | None = None,
    lines: LogLines | None = None,
) -> Record:
    """Print the log as it grows until the training ends; Ctrl-C leaves the training running.

    Args:
        reader: Where to begin; at the very beginning by default.
        lines: How to print; each line after its source by default.
    """
    from dlctl.cli.progress_line import ProgressLine
    from dlctl.lifecycle import QueuePace, learner_status, refresh
    from dlctl.logs.reader import LogReader
    from dlctl.logs.reader import follow as follow_log

    known, line, told, pace = [record], ProgressLine(), [""], QueuePace()

    def state() -> State:
        known[0] = refresh(stays, [known[0]], store, pace)[0]
        _say_why_it_waits(known[0], told)
        if line.active:
            line.update(learner_status(stays, known[0]))
        return known[0].state

    def trouble(error: TransportError) -> None:
        line.clear()
        output.warn(f"{error.message}; trying again")

    try:
        reader = reader or LogReader(record.job_dir)
        with session.staying() as stays:
            pieces = follow_log(stays.transport, reader, state, trouble)
            print_pieces(line.below(pieces), lines)
    except KeyboardInterrupt:
        output.interrupted(f"stopped following; the training continues as {record.training_id}")
        output.hint(f"dlctl logs --follow {record.training_id}")
        raise typer.Exit(130) from None
    return known[0]


def _say_why_it_waits(record: Record, told: list[str]) -> None:
    """Say why there is no job yet, once and at each change.

    Raises:
        RecordError: its submission was interrupted, and there will be no job.
    """
    from dlctl.contract import State

    if record.state not in (State.QUEUED, State.PENDING):
        return
    why = record.reason
    if record.state is State.QUEUED and not record.job_id and record.stale_since is None:
        _refuse_to_wait(record)
        why = ("it has not reached the scheduler yet; if no other dlctl is sending it: "
               f"dlctl resume {record.training_id}")  # fmt: skip
    if why != told[0]:
        told[0] = why
        output.note(f"{record.training_id} {record.state}: {why}")


def _refuse_to_wait(record: Record) -> None:
    from dlctl.errors import RecordError

    age_s = time.time() - (unix_seconds(record.created_at) or 0.0)
    if age_s > _SENDING_S:  # before, another dlctl may be sending it
        raise RecordError(
            f"{record.training_id} has no job whose log could be followed: {record.reason}",
            hint=record.hint or f"dlctl resume {record.training_id}",
        )


def end_of_following(record: Record) -> None:
    """Say how the followed training ended; FAILED and CANCELLED give exit code 10.

    Raises:
        TrainingFailed
    """
    from dlctl.contract import State
    from dlctl.errors import TrainingFailed

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

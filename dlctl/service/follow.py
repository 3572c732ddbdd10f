"""Follow the log of a training, or of a part of it, and say why there is none yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dlctl.contract import State
from dlctl.errors import RecordError
from dlctl.units import unix_seconds

if TYPE_CHECKING:
    from dlctl.errors import TransportError
    from dlctl.lifecycle import Session
    from dlctl.logs.reader import LogPiece, LogReader
    from dlctl.record import Record, RecordStore
    from dlctl.tell import Tell

_SENDING_S = 60.0
"""How long a submission may take before it counts as interrupted."""


def follow(
    session: Session, record: Record, store: RecordStore, tell: Tell,
    take: Callable[[Iterator[LogPiece]], object], reader: LogReader | None = None,
    on_look: Callable[[Session, Record], object] = lambda _session, _record: None,
) -> Record:  # fmt: skip
    """Hand over lines as they come until the training ends; return it as it is then.

    Args:
        take: Is given the lines.
        reader: Where to begin; at the very beginning by default.
        on_look: Called at each look at the training; if it returns True, what is followed is over.

    Raises:
        RecordError: its submission was interrupted, and there will be no job.
    """
    from dlctl.lifecycle import QueuePace, refresh
    from dlctl.logs import reader as logs

    pace, told = QueuePace(), ""

    def state() -> State:
        nonlocal record, told
        (record,) = refresh(stays, [record], store, pace)
        if (why := _why_it_waits(record)) and why != told:
            told = why
            tell.note(f"{record.training_id} {record.state}: {why}")
        return State.COMPLETED if on_look(stays, record) else record.state

    def trouble(error: TransportError) -> None:
        tell.warn(f"{error.message}; trying again")

    reader = reader or logs.LogReader(record.job_dir)
    with session.staying() as stays:
        take(logs.follow(stays.transport, reader, state, trouble))
    return record


def _why_it_waits(record: Record) -> str:
    if record.state is State.QUEUED and not record.job_id and record.stale_since is None:
        age_s = time.time() - (unix_seconds(record.created_at) or 0.0)
        if age_s > _SENDING_S:  # before, another dlctl may be sending it
            raise RecordError(
                f"{record.training_id} has no job whose log could be followed: {record.reason}",
                hint=record.hint or f"dlctl resume {record.training_id}",
            )
        return ("it has not reached the scheduler yet; if no other dlctl is sending it: "
                f"dlctl resume {record.training_id}")  # fmt: skip
    return record.reason if record.state in (State.QUEUED, State.PENDING) else ""

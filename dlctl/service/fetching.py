"""Bring from a site the log of a training as it grows, and what it has made."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.contract import State
from dlctl.contract.ground.amounts import format_span
from dlctl.data import store_again
from dlctl.errors import RecordError, TransportError
from dlctl.lifecycle import refresh
from dlctl.outputs import fetch as outputs
from dlctl.outputs.fetch import Fetched
from dlctl.record import FETCHED
from dlctl.service.client import one_by_one
from dlctl.units import unix_seconds

if TYPE_CHECKING:
    from dlctl.errors import DlctlError
    from dlctl.lifecycle import Session
    from dlctl.logs.reader import LogPiece, LogReader
    from dlctl.record import Record, RecordStore
    from dlctl.series.merged import Entry
    from dlctl.service.client import Client
    from dlctl.service.logs import LinesWanted
    from dlctl.tell import Tell


_SENDING_S = 60.0
"""The time that a submission may take before it counts as interrupted."""


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
    newest = [record]

    def look(stays: Session, known: Record) -> object:
        newest.append(known)
        return on_look(stays, known)

    take(pieces(session, record, store, tell, reader, look))
    return newest[-1]


def pieces(
    session: Session, record: Record, store: RecordStore, tell: Tell,
    reader: LogReader | None = None,
    on_look: Callable[[Session, Record], object] = lambda _session, _record: None,
) -> Iterator[LogPiece]:  # fmt: skip
    """Yield lines as they come until the training ends; the arguments are those of `follow`.

    Raises:
        RecordError: its submission was interrupted, and there will be no job.
    """
    from dlctl.lifecycle import QueuePace, refresh
    from dlctl.logs import reader as logs

    pace, reason = QueuePace(), ""

    def state() -> State:
        nonlocal record, reason
        (record,) = refresh(stays, [record], store, pace)
        if (why := _why_it_waits(record)) and why != reason:
            reason = why
            tell.note(f"{record.training_id} {record.state}: {why}")
        return State.COMPLETED if on_look(stays, record) else record.state

    def trouble(error: TransportError) -> None:
        tell.warn(f"{error.message}; trying again")

    with session.staying() as stays:
        yield from logs.follow(
            stays.transport, reader or logs.LogReader(record.job_dir), state, trouble
        )


def lines(
    session: Session, record: Record, mine: Client, wanted: LinesWanted, *, follow: bool = False
) -> Iterator[str]:
    """Yield the lines that are wanted, merged by time; each as `learner-0 | text`.

    Args:
        follow: Go on until the training has ended.
    """
    from dlctl.logs.reader import read

    record, reader = wanted.reader(session, record, mine.store)
    found = read(session.transport, reader)
    if follow and wanted.attempt in (None, record.attempt):
        found = pieces(session, record, mine.store, mine.tell, reader)
    for piece in found:
        yield from (f"{piece.source} | {line}" for line in wanted.of(piece))


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


def measured(
    mine: Client, record: Record, since_step: int = 0, names: str | None = None
) -> Iterator[Entry]:
    """Yield what was measured; of a site that does not answer, what it told before.

    Args:
        names: A regular expression of the values that are wanted; None: all.

    Raises:
        ResultsError: `names` is none.
        TransportError: the site does not answer, and nothing is known.
    """
    from dlctl.outputs.metrics.files import kept_metrics, read_metrics
    from dlctl.outputs.metrics.formats import chosen

    try:
        with closing(mine.open(record.site)) as session:
            entries = read_metrics(session.transport, record)
    except TransportError as error:
        if not error.transient or (kept := kept_metrics(record)) is None:
            raise
        seen_at, entries = kept
        age = format_span(time.time() - seen_at)
        mine.tell.warn(f"{error.message}; the metrics are as of {age} ago")
    else:
        if not entries and (kept := kept_metrics(record)) is not None:
            entries = kept[1]
            mine.tell.warn(f"{record.job_dir} holds no metrics any more; these were seen earlier")
    yield from chosen(entries, since_step, names)


ALL = "all"
PARTS = (*outputs.PARTS, ALL)


def fetch(
    mine: Client, records: Sequence[Record], what: str, to: Path | None = None,
    include: Sequence[str] = (), *, restore: bool = False,
) -> tuple[list[tuple[Record, Fetched]], list[DlctlError]]:  # fmt: skip
    """Download a part of what trainings have made, and verify every file.

    Args:
        what: One of `PARTS`.
        to: Of several trainings a folder with one for each; by default `results/`, with one.
        include: Patterns, one of which a file's path or name must fit; none: all.
        restore: First have the login node write the results to the data stores.

    Returns:
        What was fetched of each, and the failures.
    """

    def bring(session: Session, record: Record, store: RecordStore) -> tuple[Record, Fetched]:
        folder = to or Path("results") / record.training_id
        if to is not None and len(records) > 1:
            folder = to / record.training_id
        (record,) = refresh(session, [record], store)
        for line in store_again(session, record, store, mine.tell.note) if restore else ():
            mine.tell.note(line)
        waits = f"another `dlctl fetch` writes to {folder}: waiting until it ends"
        parts = outputs.PARTS if what == ALL else (what,)
        with mine.tell.progress("fetching") as on_progress:
            wanted = outputs.Wanted(parts, include, on_progress, lambda: mine.tell.note(waits))
            fetched = outputs.fetch(session.transport, record, folder.absolute(), wanted)
        if not include and record.state.final:
            record = store.mark_fetched(record, [p for p in fetched.parts if p in FETCHED])
        return record, fetched

    return mine.at_sites(records, one_by_one(bring))

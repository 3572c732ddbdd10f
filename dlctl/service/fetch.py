"""Fetch what trainings produced."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.data.results import store_again
from dlctl.lifecycle import refresh
from dlctl.outputs import fetch as outputs
from dlctl.outputs.fetch import Fetched
from dlctl.record import FETCHED
from dlctl.service.client import one_by_one

if TYPE_CHECKING:
    from dlctl.errors import DlctlError
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore
    from dlctl.service.client import Client

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
        waits = f"another dlctl fetch writes to {folder}: waiting until it ends"
        parts = outputs.PARTS if what == ALL else (what,)
        with mine.tell.progress("fetching") as on_progress:
            wanted = outputs.Wanted(parts, include, on_progress, lambda: mine.tell.note(waits))
            fetched = outputs.fetch(session.transport, record, folder.absolute(), wanted)
        if not include and record.state.final:
            record = store.mark_fetched(record, [p for p in fetched.parts if p in FETCHED])
        return record, fetched

    return mine.at_sites(records, one_by_one(bring))

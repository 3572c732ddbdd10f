"""Keep on this machine what trainings have used: their files may be deleted.

It is a table of the local record, an attempt a row. Losing it loses only evidence, so what can't be
written is not, and rows of another version that can't be understood are left out.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import State
from dlctl.errors import DlctlError, RecordError
from dlctl.lifecycle.accounts import AttemptAccount, accounts
from dlctl.record_file import read_rows
from dlctl.suggest.past import Past, pasts

if TYPE_CHECKING:
    from dlctl.contract import Plan
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore

_TABLE = """
CREATE TABLE IF NOT EXISTS used (
    attempt TEXT PRIMARY KEY, name TEXT NOT NULL, code TEXT NOT NULL, fields TEXT NOT NULL)"""
_MOST = 1000
"""Attempts that are kept: reading them must cost a submission nothing that anybody notices."""
_AT_ONCE = 30
"""Trainings whose files are read by one command: the newest."""


def known(store: RecordStore, plans: Sequence[Plan] = ()) -> list[Past]:
    """Return what is known of attempts, the newest last; nothing if the record can't be read.

    Args:
        plans: Only the past of trainings with the name or the code of one of these counts.
    """
    found = list[Past]()
    words = {plan.name for plan in plans} | {plan.code_digest for plan in plans}
    with contextlib.suppress(RecordError):
        for row in read_rows(store.path, {"used": "rowid"})["used"]:
            if words and not words & {row["name"], row["code"]}:
                continue
            with contextlib.suppress(ValueError, TypeError, KeyError):
                found.append(contract.from_plain(Past, json.loads(row["fields"])))
    return found


def unread(records: Iterable[Record], held: Iterable[Past]) -> list[Record]:
    """Return the newest of those trainings whose site may know more than the history."""
    over = {each.token for each in held if each.is_over}
    found = [
        record for record in records
        if f"{record.training_id}.{record.attempt}" not in over and not record.is_gone
        and (record.job_id or record.attempt > 1)
        and record.folder and not record.is_search  # a rehearsal has no folder
    ]  # fmt: skip
    return sorted(found, key=lambda record: record.created_at)[-_AT_ONCE:]


def known_here(store: RecordStore, plans: Sequence[Plan]) -> list[Past]:
    """Return what is known without a question about trainings of a name or code.

    Of those that nobody has read the local record alone tells how long they ran, if they completed.
    """
    held = known(store, plans)
    read = {past.training_id for past in held}
    return held + [
        Past(record.training_id, 1, record.name, "", record.job_id, record.site, "", 0, 0, 0, 0,
             None, record.epochs, 0, str(record.state), held_s=record.ended_at - record.started_at)
        for record in store.all({plan.name for plan in plans})
        if record.training_id not in read and record.folder and not record.is_search
        and record.state is State.COMPLETED and record.attempt == 1
        and record.ended_at > record.started_at > 0
    ]  # fmt: skip


def learn(
    session: Session, records: Sequence[Record], store: RecordStore
) -> dict[str, list[AttemptAccount]]:
    """Ask a site what trainings have used, in three queries for all, and keep and return that.

    Raises:
        TransportError
    """
    books = accounts(session, records, beside=True) if records else {}
    now = time.time()
    mine = {record.training_id for record in records if record.folder and not record.is_search}
    keep(store, [past for name, attempts in books.items() if name in mine
                 for past in pasts(name, attempts, now)])  # fmt: skip
    return books


def learn_before_removal(session: Session, records: Iterable[Record], store: RecordStore) -> None:
    """Learn what is not known yet of trainings whose files are about to go, if that is possible."""
    with contextlib.suppress(DlctlError):
        learn(session, unread(records, known(store)), store)


def keep(store: RecordStore, found: Sequence[Past]) -> None:
    """Write what is known of attempts, the newest `_MOST`."""
    rows = [(p.token, p.name, p.code_digest, contract.to_json(p)) for p in found]

    def write(connection: sqlite3.Connection) -> None:
        connection.executemany("INSERT OR REPLACE INTO used VALUES (?, ?, ?, ?)", rows)
        connection.execute("DELETE FROM used WHERE rowid <= (SELECT max(rowid) FROM used) - ?",
                           [_MOST])  # fmt: skip

    if rows:
        with contextlib.suppress(RecordError):
            store.change(write, [_TABLE])

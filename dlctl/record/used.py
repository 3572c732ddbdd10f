"""Keep what attempts have used, from their verdicts: it outlives the trainings.

It is a table of the local record, an attempt a row. Losing it loses only evidence, so what can't be
written is not, and rows of another version that can't be understood are left out.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract.measured.past import Past
from dlctl.errors import RecordError
from dlctl.record.file import read_rows

if TYPE_CHECKING:
    from dlctl.contract import Plan
    from dlctl.record.store import RecordStore

_MOST = 1000
"""Attempts that are kept: reading them must cost a submission nothing that anybody notices."""


def known(store: RecordStore, plans: Sequence[Plan] = ()) -> list[Past]:
    """Return what is known of attempts, the newest last; nothing if the record can't be read.

    Args:
        plans: Only the past of trainings with the name or the code of one of these counts.
    """
    found = list[Past]()
    words = {plan.name for plan in plans} | {plan.code_digest for plan in plans}
    with contextlib.suppress(RecordError):
        for row in read_rows(store.path, "used"):
            if words and not words & {row["name"], row["code"]}:
                continue
            with contextlib.suppress(ValueError, TypeError, KeyError):
                found.append(contract.from_plain(Past, json.loads(row["fields"])))
    return found


def keep(store: RecordStore, found: Sequence[Past]) -> None:
    """Write what is known of attempts, the newest `_MOST`."""
    rows = [(p.token, p.name, p.code_digest, contract.to_json(p)) for p in found]

    def write(connection: sqlite3.Connection) -> None:
        connection.executemany(
            "INSERT INTO used VALUES (?, ?, ?, ?) ON CONFLICT (attempt) DO UPDATE SET "
            "name = excluded.name, code = excluded.code, fields = excluded.fields", rows,
        )  # fmt: skip
        connection.execute("DELETE FROM used WHERE rowid <= (SELECT max(rowid) FROM used) - ?",
                           [_MOST])  # fmt: skip

    if rows:
        with contextlib.suppress(RecordError):
            store.change(write)

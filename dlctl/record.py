"""The local record: this user's trainings, and what was last known about each (SQLite).

It caches what the sites say and remembers what was asked for: losing it loses no training.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from dlctl.contract import State
from dlctl.errors import RecordError

_SCHEMA_VERSION = 1
_TABLE = """
CREATE TABLE IF NOT EXISTS trainings (
    training_id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    site TEXT NOT NULL,
    folder TEXT NOT NULL,
    job_dir TEXT NOT NULL,
    manifest_path TEXT NOT NULL,
    overrides TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    hint TEXT NOT NULL,
    created_at TEXT NOT NULL,
    seen_at REAL NOT NULL,
    stale_since REAL
)"""


@dataclass(frozen=True)
class Record:
    """One training, as it was last seen."""

    training_id: str
    name: str
    site: str
    folder: str
    """The user's folder that it was submitted from; `find` accepts the manifest's folder, too."""
    job_dir: str
    created_at: str
    manifest_path: str = ""
    overrides: str = "{}"
    """The command line's overrides, as JSON: an interrupted submission is rebuilt from them."""
    attempt: int = 1
    job_id: str = ""
    """The scheduler's id of the newest attempt; empty until it is known."""
    state: State = State.QUEUED
    reason: str = ""
    hint: str = ""
    seen_at: float = 0.0
    """When the site last answered about it (Unix seconds here)."""
    stale_since: float | None = None
    """Since when the site has not answered; None if it did at the last try."""


_COLUMNS = [field.name for field in fields(Record)]


def state_directory() -> Path:
    """Return `$XDG_STATE_HOME/dlctl`; create it, private to the user, if it does not exist."""
    base = os.environ.get("XDG_STATE_HOME", "")
    path = (Path(base) if base.startswith("/") else Path.home() / ".local" / "state") / "dlctl"
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise RecordError(
            f"the folder of the local record, {path}, can't be created: {error.strerror}",
            hint="set XDG_STATE_HOME to a writable folder",
        ) from error
    return path


class RecordStore:
    """The record's file. Several dlctl at once are fine: each change is one transaction."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or state_directory() / "trainings.db"

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = sqlite3.connect(self.path, timeout=10.0)
            try:
                connection.row_factory = sqlite3.Row
                with connection:
                    connection.execute(_TABLE)
                    connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
                    yield connection
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise RecordError(
                f"the local record {self.path} can't be used: {error}",
                hint="check space and permissions there; without the file dlctl starts afresh",
            ) from error

    def add(self, record: Record) -> None:
        """Write a new record."""
        names = ", ".join(_COLUMNS)
        marks = ", ".join("?" for _ in _COLUMNS)
        with self._open() as connection:
            connection.execute(f"INSERT INTO trainings ({names}) VALUES ({marks})", _row(record))  # noqa: S608

    def update(self, record: Record) -> None:
        """Write the current knowledge; an older attempt never overwrites a newer one."""
        changes = ", ".join(f"{name} = ?" for name in _COLUMNS)
        with self._open() as connection:
            connection.execute(
                f"UPDATE trainings SET {changes} WHERE training_id = ? AND attempt <= ?",  # noqa: S608
                [*_row(record), record.training_id, record.attempt],
            )

    def remove(self, training_id: str) -> None:
        """Forget one training."""
        with self._open() as connection:
            connection.execute("DELETE FROM trainings WHERE training_id = ?", [training_id])

    def all(self) -> list[Record]:
        """Return every record, the newest last."""
        with self._open() as connection:
            rows = connection.execute("SELECT * FROM trainings ORDER BY created_at, rowid")
            return [_record(row) for row in rows]

    def find(self, wanted: str | None, folder: Path | None = None) -> Record:
        """Return the training with this id or unique prefix; without one, the folder's latest.

        Raises:
            RecordError: there is none, or several.
        """
        records = self.all()
        if wanted is None:
            return self._latest(records, folder or Path.cwd())
        found = [r for r in records if r.training_id == wanted] or [
            r for r in records if r.training_id.startswith(wanted)
        ]
        if not found:
            raise RecordError(
                f"no training {wanted!r} is known here", hint="`dlctl list` shows them all"
            )
        if len(found) > 1:
            names = ", ".join(r.training_id for r in found[-5:])
            raise RecordError(f"{wanted!r} fits {len(found)} trainings", hint=f"such as {names}")
        return found[0]

    @staticmethod
    def _latest(records: list[Record], folder: Path) -> Record:
        here = str(folder.resolve())
        mine = [r for r in records if here in (r.folder, str(Path(r.manifest_path).parent))]
        if mine:
            return mine[-1]
        raise RecordError(
            f"no training was submitted from {here}",
            hint="name one (`dlctl list` shows them), or `dlctl submit manifest.yml`",
        )


def _row(record: Record) -> list[object]:
    return [str(v) if isinstance(v := getattr(record, n), State) else v for n in _COLUMNS]


def _record(row: sqlite3.Row) -> Record:
    values = dict(row)
    values["state"] = State(values["state"])
    return Record(**values)

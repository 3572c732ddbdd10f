"""The trainings in the local record.

Reading writes nothing into the file, and succeeds while another process holds its lock or the disk
is full. A row that can't be understood, such as one of a newer dlctl, is skipped, reported and
never overwritten.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from dlctl import contract
from dlctl.errors import RecordError
from dlctl.record.file import is_damaged, put_aside, read_rows, readable_rows, write
from dlctl.record.names import fitting, nearest
from dlctl.record.training import ADOPTED, FETCHED, Record


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


@dataclass(frozen=True)
class Repaired:
    """A damaged record that was put aside."""

    kept_as: Path
    saved: int
    """The number of trainings that could still be read, and are in the new one."""


_WORDS = ("tags", "notes")
"""Fields that only `reword` writes."""


class RecordStore:
    """The record's file. Several dlctl at once are fine: each change is one short transaction.

    Args:
        tell: Called with one sentence, at most once for each, about what can't be read or written.
    """

    def __init__(
        self, path: Path | None = None, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self.path = path or state_directory() / "record.db"
        self.tell, self._notes = tell, set[str]()
        self._unwritten: dict[str, Record] = {}
        """Records that this process could not write."""
        self._decoded: dict[str, tuple[str, Record]] = {}
        """The rows of the last read, decoded: most stay the same."""

    def add(
        self, *records: Record, more: Callable[[sqlite3.Connection], object] = lambda _: None
    ) -> None:
        """Write new records, all or none.

        Args:
            more: Writes further rows in the same transaction.

        Raises:
            RecordError: they can't be written; nothing should be submitted without them.
        """

        def insert(connection: sqlite3.Connection) -> None:
            for record in records:
                _insert(connection, record)
            more(connection)

        try:
            self.change(insert)
        except RecordError as error:
            raise type(error)(f"nothing was submitted: {error.message}", hint=error.hint) from error

    def add_missing(self, records: Iterable[Record]) -> list[Record]:
        """Write the records of trainings that are not there yet; return those.

        Raises:
            RecordError: it can't be written.
        """
        added: list[Record] = []

        def insert(connection: sqlite3.Connection) -> None:
            added.clear()  # a change that meets a lock is made again
            for record in records:
                with contextlib.suppress(sqlite3.IntegrityError):
                    _insert(connection, record)
                    added.append(record)

        self.change(insert)
        return added

    def repair(self) -> Repaired | None:
        """Put a damaged file aside, and save what can still be read of it; None if it is whole.

        Raises:
            RecordError: the file can't be read for another reason, or not be put aside.
        """
        if not is_damaged(self.path):
            return None
        rows = list(readable_rows(self.path, "trainings"))
        kept_as = put_aside(self.path)
        saved = []
        for row in rows:
            with contextlib.suppress(ValueError, TypeError, IndexError):
                saved.append(_record(row["fields"]))
        return Repaired(kept_as, len(self.add_missing(saved)))

    def update(self, *records: Record, new_overrides: bool = False) -> None:
        """Write the current knowledge; an older attempt never overwrites a newer one.

        What the sites have done stays done if it can't be written: then `tell` hears of it, and
        this store goes on with what it knows.

        Args:
            records: Their tags and notes are not written: another dlctl may have changed them.
            new_overrides: The overrides are new; else those in the file stay for the same reason.
        """

        def write_newer(connection: sqlite3.Connection) -> None:
            for record in records:
                before = _fields(connection, record.training_id)
                if before and before["attempt"] <= record.attempt:
                    _write(connection, before | _newer(record, before, new_overrides))

        try:
            self.change(write_newer)
            for record in records:
                self._unwritten.pop(record.training_id, None)
        except RecordError as error:
            self._unwritten.update((record.training_id, record) for record in records)
            self._say(f"{error.message}; what is known is not written down")

    def reword(
        self, records: Sequence[Record], field: str, change: Callable[[list[str]], list[str]]
    ) -> None:
        """Change the tags or the notes of trainings as they are now.

        Raises:
            RecordError: they can't be written.
        """

        def write_words(connection: sqlite3.Connection) -> None:
            for record in records:
                if before := _fields(connection, record.training_id):
                    _write(connection, before | {field: change(before.get(field, []))})

        self.change(write_words)

    def mark_fetched(self, record: Record, parts: Iterable[str] = ("results",)) -> Record:
        """Remember that parts of what the record's attempt left were fetched; return the record.

        Args:
            parts: Some of the keys of `FETCHED`.
        """
        names = {FETCHED[part]: record.attempt for part in parts}
        record = replace(record, **names)  # type: ignore[arg-type]
        self.update(record)
        return record

    def remove(self, *training_ids: str) -> None:
        """Forget trainings."""
        ids = [(training_id,) for training_id in training_ids]

        if ids:
            query = "DELETE FROM trainings WHERE training_id = ?"
            self.change(lambda connection: connection.executemany(query, ids))

    def all(self, names: Collection[str] = ()) -> list[Record]:
        """Return every record that this version understands, the last that was submitted last.

        Args:
            names: Those of trainings; empty: all.
        """
        known, unknown = [], []
        for row in read_rows(self.path, "trainings"):
            try:
                known.append(self._decode(row["training_id"], row["fields"]))
            except (ValueError, TypeError) as error:
                unknown.append(f"{row['training_id']} ({error})")
        known = _by_submission(known)
        if not known and (old := self.path.with_name("trainings.db")).exists():
            self._say(f"{old} is of an earlier dlctl: `dlctl adopt SITE` lists its trainings again")
        if unknown:
            self._say(f"the local record {self.path} has {len(unknown)} that this version of dlctl "
                      f"does not understand: {', '.join(unknown[:3])}")  # fmt: skip
        wanted = [record for record in known if not names or record.name in names]
        return [self._newest(record) for record in wanted] if self._unwritten else wanted

    def _decode(self, training_id: str, fields: str) -> Record:
        known, record = self._decoded.get(training_id, ("", None))
        if record is None or known != fields:
            record = _record(fields)
            self._decoded[training_id] = fields, record
        return record

    def _newest(self, record: Record) -> Record:
        """Return a record of the file, or what is newer and could not be written."""
        mine = self._unwritten.get(record.training_id, record)
        if (mine.attempt, mine.seen_at) < (record.attempt, record.seen_at):
            return record
        return replace(mine, tags=record.tags, notes=record.notes)

    def find(self, wanted: str | None, folder: Path | None = None) -> Record:
        """Return the training with this id, or a unique beginning or end of it.

        Without one, return the latest training of the folder, or of the nearest folder above it.

        Raises:
            RecordError: there is none, or several.
        """
        return self.find_all([] if wanted is None else [wanted], folder)[0]

    def find_search(self, wanted: str | None) -> Record:
        """Return what `find` returns; without an id the latest search, if there is one.

        Raises:
            RecordError: there is none, or several.
        """
        if wanted is None:
            searches = [record for record in self.all() if record.is_search]
            with contextlib.suppress(RecordError):
                return _latest(searches, Path.cwd())
        return self.find(wanted)

    def find_all(self, wanted: Iterable[str], folder: Path | None = None) -> list[Record]:
        """Return what `find` returns for each, once each; the record is read once.

        Raises:
            RecordError: there is none, or several.
        """
        records = {record.training_id: record for record in self.all()}
        found = dict.fromkeys(fitting(name, list(records)) for name in wanted)
        if not found:
            return [_latest(records.values(), folder or Path.cwd())]
        return [records[name] for name in found]

    def change(self, change: Callable[[sqlite3.Connection], object]) -> None:
        """Change the file in one transaction.

        Raises:
            RecordError: it can't be written.
        """
        write(self.path, change)

    def _say(self, text: str) -> None:
        if text not in self._notes:
            self._notes.add(text)
            self.tell(text)


def _by_submission(records: Iterable[Record]) -> list[Record]:
    """Return records in the order of their submission, although the clock was ahead at times.

    Args:
        records: In the order in which they were written down; adopted ones came in later.
    """
    placed: list[tuple[str, Record]] = []
    latest = ""
    for record in records:
        if record.folder != ADOPTED:
            latest = max(latest, record.created_at)
        placed.append((record.created_at if record.folder == ADOPTED else latest, record))
    return [record for _, record in sorted(placed, key=itemgetter(0))]


def _latest(records: Iterable[Record], folder: Path) -> Record:
    newest: dict[str, Record] = {}
    for record in records:
        newest[record.folder] = record
        if record.manifest_path:
            newest[str(Path(record.manifest_path).parent)] = record
    return nearest(newest, folder)


def _insert(connection: sqlite3.Connection, record: Record) -> None:
    connection.execute("INSERT INTO trainings VALUES (?, ?)",
                       [record.training_id, json.dumps(asdict(record))])  # fmt: skip


def _fields(connection: sqlite3.Connection, training_id: str) -> dict[str, Any]:
    """Return the fields of a training, those of a newer dlctl too; none if it is unknown."""
    query = "SELECT fields FROM trainings WHERE training_id = ?"
    row = connection.execute(query, [training_id]).fetchone()
    found: dict[str, Any] = json.loads(row[0]) if row else {}
    return found


def _write(connection: sqlite3.Connection, fields: dict[str, Any]) -> None:
    connection.execute("UPDATE trainings SET fields = ? WHERE training_id = ?",
                       [json.dumps(fields), fields["training_id"]])  # fmt: skip


def _newer(record: Record, before: dict[str, Any], new_overrides: bool) -> dict[str, Any]:
    """Return a record's fields, but those that another dlctl may have changed since it was read."""
    after = asdict(record)
    after |= {name: max(after[name], before.get(name, 0)) for name in FETCHED.values()}
    after |= {name: before.get(name, []) for name in _WORDS}
    if not new_overrides:
        after["overrides"] = before["overrides"]
    return after


def _record(fields: str) -> Record:
    """Return what is written about a training; raise ValueError or TypeError if it is no record."""
    return contract.from_plain(Record, json.loads(fields))

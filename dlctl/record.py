"""The local record: this user's trainings, and what was last known about each (SQLite).

It caches what the sites say and remembers what was asked for: losing it loses no training.
Reading writes nothing into the file, and succeeds while another process holds its lock or the disk
is full. What can't be understood, such as a row of a newer dlctl, is skipped, told and never
overwritten.

The state folder may lie on any file system (`dlctl.record_file`): on this machine's own disks the
file keeps a write-ahead log, so that readers and a writer don't wait for each other. That log needs
memory that all its users share, which machines with one home folder over NFS don't have. There the
file keeps a rollback journal, and a reader that waits too long reads what is on the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from dlctl import contract
from dlctl.contract import State
from dlctl.contract.ground.amounts import format_span
from dlctl.errors import RecordError
from dlctl.record_file import is_damaged, put_aside, read_rows, readable_rows, write
from dlctl.record_names import fitting, nearest
from dlctl.record_rows import fields_in, more_of, sql_values, value_of, write_more
from dlctl.units import unix_seconds

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
_MORE_TABLE = """
CREATE TABLE IF NOT EXISTS more (training_id TEXT PRIMARY KEY, fields TEXT NOT NULL)"""
"""Fields that came later, as a JSON object: dlctl 0.1 refuses a column that it does not know."""

ADOPTED = "(adopted)"
"""In place of the folder of a training that a site has told of: no path is equal to it."""
FETCHED = {
    "results": "fetched_attempt", "checkpoints": "checkpoints_fetched_attempt",
    "output": "output_fetched_attempt",
}  # fmt: skip
"""Part of a training → the field of its record that tells after which attempt it was fetched."""
GONE = "its job directory is gone from the site"
"""How the reason of a training ends whose files somebody, or a purge of old files, has removed."""
UNKNOWN_IF_0 = ("seen_at", "started_at", "ended_at", "epochs", "starts_at", "ends_at")
"""Fields of a record that are null in JSON if nobody knows them."""


@dataclass(frozen=True)
class Record:
    """One training, as it was last seen."""

    training_id: str
    name: str
    site: str
    folder: str
    """The user's folder that it was submitted from, or `ADOPTED`; `find` accepts the manifest's
    folder, too. Empty: of a rehearsal."""
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
    started_at: float = 0.0
    """When the newest attempt's job began (Unix seconds on the node); 0 if it has not."""
    ended_at: float = 0.0
    """When it ended; 0 if that is not known."""
    epochs: int = 0
    """How many epochs were asked for; 0 if that is not known, or if a program decides."""
    epoch: int | None = None
    step: int | None = None
    """Learner 0's last epoch and step."""
    done: float | None = None
    """The share of its work that it says is done, from 0 to 1."""
    loss: float | None = None
    """Its last loss."""
    moved: float | None = None
    """The share of the data that has been loaded or stored, while that lasts."""
    fetched_attempt: int = 0
    """The attempt after whose end the results were fetched."""
    checkpoints_fetched_attempt: int = 0
    """The attempt after whose end all checkpoints were fetched."""
    output_fetched_attempt: int = 0
    """The attempt after whose end the output in the program's own folder was fetched."""
    made: contract.Made | None = None
    """What it had made when its newest attempt ended; None if that is not known."""
    notice_tries: int = 0
    """How many more times a dlctl that looks tries to send a notice of this state."""
    model: str = ""
    """The stored model that it trains, as `ID@N`; empty if a folder was sent."""
    is_search: bool = False
    """Whether it is the hub of a search. Searches of older versions don't tell."""
    tags: list[str] = field(default_factory=list)
    """The user's words for it, in order."""
    varied: str = ""
    """What tells it from the others of its command, as `lr=0.1 seed=2`."""
    goes_on: bool | None = None
    """Whether its plan lets it go on by itself after a fault; None: nobody has read the plan."""
    starts_at: float = 0.0
    """When the scheduler expects the job in its queue to start (Unix seconds here); 0 if it does
    not tell."""
    ends_at: float = 0.0
    """When its first attempt will be done if it goes on like this (Unix seconds here); 0 if that is
    not known."""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it: objects, times in Unix seconds, and no credentials."""
        overrides = None
        with contextlib.suppress(ValueError):
            overrides = json.loads(self.overrides, object_hook=_shown)
        unknown = {name: getattr(self, name) or None for name in UNKNOWN_IF_0}
        return vars(self) | unknown | {
            "state": str(self.state), "created_at": unix_seconds(self.created_at),
            "overrides": overrides, "made": None if self.made is None else asdict(self.made),
        }  # fmt: skip

    @property
    def state_in_words(self) -> str:
        """Return the state, and for how long it is stale."""
        if self.stale_since is None:
            return str(self.state)
        return f"{self.state} (stale for {format_span(time.time() - self.stale_since)})"

    @property
    def show_command(self) -> str:
        """Return the command that shows all about it."""
        return f"dlctl show {self.training_id}"

    def was_fetched(self, part: str) -> bool:
        """Return whether a part of what its newest attempt left was fetched."""
        return bool(getattr(self, FETCHED[part]) == self.attempt)

    @property
    def is_gone(self) -> bool:
        """Return whether its job directory was missing when the site last answered."""
        return self.reason.endswith(GONE)


def _shown(overrides: dict[str, Any]) -> dict[str, Any]:
    """Return overrides without the values of keys below which manifests hold credentials."""
    return overrides | {"set": [
        f"{pair.partition('=')[0]}=(hidden)" if pair.lstrip().startswith(_PRIVATE) else pair
        for pair in overrides["set"]
    ]} if overrides.get("set") else overrides  # fmt: skip


_PRIVATE = ("env.", "notify.", "data_stores.")
_FIELDS = [item.name for item in fields(Record)]
_COLUMNS = _FIELDS[: _FIELDS.index("stale_since") + 1]
_MORE = _FIELDS[len(_COLUMNS) :]


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
    """How many trainings could still be read, and are in the new one."""


class RecordStore:
    """The record's file. Several dlctl at once are fine: each change is one short transaction.

    Args:
        tell: Called with one sentence, at most once for each, about what can't be read or written.
    """

    def __init__(
        self, path: Path | None = None, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self.path = path or state_directory() / "trainings.db"
        self.tell, self._told = tell, set[str]()
        self._unwritten: dict[str, Record] = {}
        """What this process knows and could not write."""
        self._decoded: dict[str, tuple[sqlite3.Row, str, Record]] = {}
        """What was read before, and what it meant: most of it stays the same."""

    def add(
        self, *records: Record, tables: Sequence[str] = (),
        more: Callable[[sqlite3.Connection], object] = lambda _: None,
    ) -> None:  # fmt: skip
        """Write new records, all or none.

        Args:
            tables: Further tables that the file gets unless it has them.
            more: What else the transaction writes.

        Raises:
            RecordError: they can't be written; nothing should be submitted without them.
        """

        def insert(connection: sqlite3.Connection) -> None:
            for record in records:
                _insert(connection, record)
            more(connection)

        try:
            self.change(insert, tables)
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
        more = {row["training_id"]: row["fields"] for row in readable_rows(self.path, "more")}
        kept_as = put_aside(self.path)
        saved = []
        for row in rows:
            with contextlib.suppress(ValueError, TypeError, IndexError):
                saved.append(_record(row, more.get(row["training_id"], "{}")))
        return Repaired(kept_as, len(self.add_missing(saved)))

    def update(self, *records: Record, asked: bool = False) -> None:
        """Write the current knowledge; an older attempt never overwrites a newer one.

        What the sites have done stays done if it can't be written: then `tell` hears of it, and
        this store goes on with what it knows.

        Args:
            records: Their tags are not written: another dlctl may have changed them.
            asked: The overrides are new; else those in the file stay for the same reason.
        """
        names = [name for name in _COLUMNS if asked or name != "overrides"]
        try:
            self.change(lambda connection: _update(connection, records, names))
            for record in records:
                self._unwritten.pop(record.training_id, None)
        except RecordError as error:
            self._unwritten.update((record.training_id, record) for record in records)
            self._say(f"{error.message}; what is known is not written down")

    def tag(self, records: Sequence[Record], change: Callable[[list[str]], list[str]]) -> None:
        """Change the tags of trainings as they are now.

        Raises:
            RecordError: they can't be written.
        """

        def write_tags(connection: sqlite3.Connection) -> None:
            for record in records:
                tags = change(more_of(connection, record.training_id).get("tags", record.tags))
                write_more(connection, record.training_id, {"tags": tags})

        self.change(write_tags)

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

        def forget(connection: sqlite3.Connection) -> None:
            for table in ("trainings", "more"):
                connection.executemany(f"DELETE FROM {table} WHERE training_id = ?", ids)  # noqa: S608

        if ids:
            self.change(forget)

    def all(self, names: Collection[str] = ()) -> list[Record]:
        """Return every record that this version understands, the newest last.

        Args:
            names: Those of trainings; empty: all.
        """
        tables = read_rows(self.path, {"trainings": "created_at, rowid", "more": "rowid"})
        more = {row["training_id"]: row["fields"] for row in tables["more"]}
        known, unknown = [], []
        for row in tables["trainings"]:
            if names and row["name"] not in names:
                continue
            try:
                known.append(self._decode(row, more.get(row["training_id"], "{}")))
            except (ValueError, TypeError, IndexError) as error:
                unknown.append(f"{row['training_id']} ({error})")
        if unknown:
            self._say(f"the local record {self.path} has {len(unknown)} that this version of dlctl "
                      f"does not understand: {', '.join(unknown[:3])}")  # fmt: skip
        return [self._newest(record) for record in known] if self._unwritten else known

    def _decode(self, row: sqlite3.Row, more: str) -> Record:
        known_row, known_more, record = self._decoded.get(row["training_id"], (None, "", None))
        if record is None or known_row != row or known_more != more:
            record = _record(row, more)
            self._decoded[record.training_id] = row, more, record
        return record

    def _newest(self, record: Record) -> Record:
        """Return a record of the file, or what is newer and could not be written."""
        mine = self._unwritten.get(record.training_id, record)
        if (mine.attempt, mine.seen_at) < (record.attempt, record.seen_at):
            return record
        return replace(mine, tags=record.tags)

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

    def change(
        self, change: Callable[[sqlite3.Connection], object], tables: Sequence[str] = ()
    ) -> None:
        """Change the file in one transaction.

        Raises:
            RecordError: it can't be written.
        """
        write(self.path, _SCHEMA_VERSION, [_TABLE, _MORE_TABLE, *tables], change)

    def _say(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.tell(text)


def _latest(records: Iterable[Record], folder: Path) -> Record:
    """Return the latest training of a folder, or of the nearest folder above it."""
    newest: dict[str, Record] = {}
    for record in records:
        newest[record.folder] = record
        if record.manifest_path:
            newest[str(Path(record.manifest_path).parent)] = record
    return nearest(newest, folder)


def _insert(connection: sqlite3.Connection, record: Record) -> None:
    names, marks = ", ".join(_COLUMNS), ", ".join("?" for _ in _COLUMNS)
    query = f"INSERT INTO trainings ({names}) VALUES ({marks})"  # noqa: S608
    connection.execute(query, sql_values(vars(record), _COLUMNS))
    write_more(connection, record.training_id, _later_fields(record))


def _update(connection: sqlite3.Connection, records: Iterable[Record], names: list[str]) -> None:
    changes = ", ".join(f"{name} = ?" for name in names)
    for record in records:
        done = connection.execute(
            f"UPDATE trainings SET {changes} WHERE training_id = ? AND attempt <= ?",  # noqa: S608
            [*sql_values(vars(record), names), record.training_id, record.attempt],
        )
        if done.rowcount:
            before = more_of(connection, record.training_id)
            after = _later_fields(record)
            # Another dlctl may have fetched, or changed the tags, since this one read the record.
            after |= {name: max(after[name], before.get(name, 0)) for name in FETCHED.values()}
            after["tags"] = before.get("tags", record.tags)
            write_more(connection, record.training_id, after)


def _later_fields(record: Record) -> dict[str, Any]:
    """Return the fields that are kept as JSON."""
    made = None if record.made is None else asdict(record.made)
    return {name: getattr(record, name) for name in _MORE} | {"made": made}


def _record(row: sqlite3.Row, more: str) -> Record:
    """Return a row as a record; raise ValueError, TypeError or IndexError if it is none."""
    values = fields_in(more) | {name: value_of(name, row[name]) for name in _COLUMNS}
    return contract.from_plain(Record, values)

"""The file of the local record: its tables, and how SQLite reads and writes them.

The state folder may lie on any file system, so the file keeps SQLite's rollback journal: a
write-ahead log needs memory that machines with one home folder over NFS don't share. A reader that
waits too long reads what is on the disk.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dlctl.contract.ground.space import see_space
from dlctl.errors import NotWritten, RecordError

_VERSION = 1
_TABLES = (
    "trainings (training_id TEXT PRIMARY KEY, fields TEXT NOT NULL)",
    "submissions (token TEXT PRIMARY KEY, command TEXT NOT NULL, ids TEXT NOT NULL)",
    "requests (key TEXT PRIMARY KEY, body TEXT NOT NULL, ids TEXT NOT NULL)",
    "used (attempt TEXT PRIMARY KEY, name TEXT NOT NULL, code TEXT NOT NULL, fields TEXT NOT NULL)",
    "models (model_id TEXT, site TEXT, known TEXT NOT NULL, PRIMARY KEY (model_id, site))",
)
"""Columns are what SQL asks for; all else is JSON, to which a newer dlctl may add fields."""
_WRITE_PATIENCE_S, _READ_PATIENCE_S, _BUSY_S = 30.0, 3.0, 5.0


def read_rows(path: Path, table: str, order: str = "rowid") -> list[sqlite3.Row]:
    """Return all rows of a table; none of one that is not there.

    Nothing is written into the file, but that SQLite undoes the change of a writer that was killed.
    While its lock is held for long, or it can't be undone, this returns what the file itself has.

    Raises:
        RecordError: the file is damaged, or may not be read.
    """
    with _explained(path):
        if not path.exists():
            return []
        query = f"SELECT * FROM {table} ORDER BY {order}"  # noqa: S608
        try:
            return _select(path, "mode=rw", query)
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
        with contextlib.suppress(sqlite3.DatabaseError):  # a writer changes it at this moment
            return _select(path, "mode=ro&immutable=1", query)
        return _select(path, "mode=rw", query)


def write(path: Path, change: Callable[[sqlite3.Connection], object]) -> None:
    """Make a change in one transaction; create the file and its tables if they are not there.

    This waits as long as others that hold the lock get on with their own changes.

    Raises:
        RecordError: it can't be written, or is of a newer version of dlctl.
    """
    with _explained(path):
        deadline, before = time.monotonic() + _WRITE_PATIENCE_S, _stamp(path)
        while True:
            try:
                return _change(path, change)
            except sqlite3.OperationalError as error:
                if (now := _stamp(path)) != before:
                    deadline, before = time.monotonic() + _WRITE_PATIENCE_S, now
                held = "locked" in str(error) or "busy" in str(error)
                if not held or time.monotonic() > deadline or lacks_locks(path.parent):
                    raise


def _stamp(path: Path) -> int:
    """Return what differs once another process has written."""
    return path.stat().st_mtime_ns if path.exists() else 0


def is_damaged(path: Path) -> bool:
    """Return whether the file is there and is no database, or one with a broken structure.

    Raises:
        RecordError: it can't be read.
    """
    if not path.exists():
        return False
    uri = f"{path.absolute().as_uri()}?mode=rw"  # which undoes what a killed writer has left
    with _explained(path):
        try:
            with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=5)) as connection:
                return bool(connection.execute("PRAGMA quick_check").fetchone()[0] != "ok")
        except sqlite3.OperationalError:
            raise  # a lock, permissions: nothing is wrong with the content
        except sqlite3.DatabaseError:
            return True


def readable_rows(path: Path, table: str) -> Iterator[sqlite3.Row]:
    """Yield the rows of a damaged file until the first that can't be read."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(uri, uri=True, timeout=5)) as connection,
    ):
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA writable_schema = on")  # else SQLite refuses a file cut short
        yield from connection.execute(f"SELECT * FROM {table}")  # noqa: S608


def put_aside(path: Path) -> Path:
    """Rename the file, and those of its journal; return its new name."""
    with _explained(path):
        kept_as = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
        with contextlib.suppress(FileNotFoundError):
            path.with_name(f"{path.name}-journal").rename(f"{kept_as}-journal")
        path.rename(kept_as)
        return kept_as


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise NotWritten(
            f"the local record {path} can't be used: {error}", hint=_hint(path, str(error))
        ) from error


NO_LOCKS = (
    "this file system has no file locks (ENOLCK): set XDG_STATE_HOME to a folder on another one, "
    "such as a disk of this machine"
)


def lacks_locks(folder: Path) -> bool:
    """Return whether nobody can lock a file in this folder: SQLite says then that others do."""
    try:
        with (
            tempfile.TemporaryDirectory(prefix=".locks-", dir=folder) as own,
            contextlib.closing(sqlite3.connect(Path(own, "new"), timeout=0)) as connection,
        ):
            connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        return "locked" in str(error)
    except OSError:  # the folder can't be written
        pass
    return False


def _hint(path: Path, problem: str) -> str:
    if ("locked" in problem or "busy" in problem) and lacks_locks(path.parent):
        return NO_LOCKS
    if "locked" in problem or "busy" in problem:
        return f"another process holds its lock: try again later, or look for it with fuser {path}"
    if path.is_dir():
        return "a folder is in the file's place: move it away"
    if "full" in problem or "I/O" in problem or "No space" in problem:
        return f"make room there: {see_space(path.parent)}"
    if "malformed" in problem or "not a database" in problem or "corrupt" in problem:
        return "`dlctl adopt SITE` puts the file aside and reads from each site what it held"
    return "check the permissions there; without the file dlctl starts afresh"


def _select(path: Path, how: str, query: str) -> list[sqlite3.Row]:
    uri = f"{path.absolute().as_uri()}?{how}"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_READ_PATIENCE_S)) as connection:
        connection.row_factory = sqlite3.Row
        return connection.execute(query).fetchall()


def _change(path: Path, change: Callable[[sqlite3.Connection], object]) -> None:
    timeout_s = min(_BUSY_S, _WRITE_PATIENCE_S)
    connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None)
    with contextlib.closing(connection):
        connection.execute("BEGIN IMMEDIATE")
        try:
            found = connection.execute("PRAGMA user_version").fetchone()[0]
            if found > _VERSION:
                raise RecordError(
                    f"the local record {path} is of a newer version of dlctl, and stays as it is",
                    hint="update dlctl, or set XDG_STATE_HOME to another folder",
                )
            if not found:
                for table in _TABLES:
                    connection.execute(f"CREATE TABLE {table}")
                connection.execute(f"PRAGMA user_version = {_VERSION}")
            change(connection)
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

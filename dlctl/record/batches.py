"""Commands that submit trainings, while they do: one that was killed is taken up by the next.

A row of the local record says which trainings a command is to submit. It is written together with
their records, before anything is sent, and removed as the command's last act. A file beside the
record, which SQLite locks, tells whether the command still runs: the same command typed a second
time meanwhile means other trainings.

A program gives a request a key of its own instead. That row stays as long as the record does, so
that the same request, given again at any time, means the same trainings.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlctl.contract import State
from dlctl.contract.ground.space import see_space
from dlctl.errors import Misused, NotWritten, RecordError
from dlctl.record.file import NO_LOCKS, read_rows
from dlctl.record.store import RecordStore
from dlctl.record.training import Record

_PREFIX = "submitting-"
_LONGEST = 200


@dataclass(frozen=True)
class Key:
    """The name that a program gives a request, to be able to repeat it.

    Raises:
        Misused: the name is empty, as a variable that nobody has set, or no short word.
    """

    name: str
    body: str
    """A digest of all that was asked for."""

    def __post_init__(self) -> None:
        if not (self.name.isascii() and self.name.isprintable() and 0 < len(self.name) <= _LONGEST):
            raise Misused(f"a token has 1 to {_LONGEST} printable ASCII characters")


class KeyTaken(RecordError):
    """Another request has this key."""


@dataclass(frozen=True)
class Batch:
    """The trainings of one command, in its order. Its lock lasts until the end of the process."""

    token: str
    records: list[Record]
    lock: sqlite3.Connection | None
    """None: no command takes it up."""


def broken_off(store: RecordStore, command: str) -> Batch | None:
    """Take up the newest submission by this command that was broken off, if there is one.

    Args:
        command: What tells a command from others: the digest of all that it would send.
    """
    for row in reversed(_rows(store)):
        if row["command"] != command:
            continue
        try:
            lock = _locked(_lock_file(store, row["token"]))
        except RecordError:
            if row in _rows(store):
                raise
            continue  # that command has ended and removed its file at this moment
        if lock is None:
            continue  # that command still runs
        known = {record.training_id: record for record in store.all()}
        ids = json.loads(row["ids"])
        records = [known[training_id] for training_id in ids if training_id in known]
        batch = Batch(row["token"], records, lock)
        ended = (State.CANCELLED, State.FAILED)
        is_given_up = len(records) < len(ids) or all(each.state in ended for each in records)
        if row in _rows(store) and not is_given_up:
            return batch
        finish(store, batch)  # or another command has finished it in between
    return None


def earlier_request(store: RecordStore, key: Key) -> Batch | None:
    """Return the trainings of the request that has this key; those that were deleted are left out.

    Raises:
        KeyTaken: that request was another one.
    """
    for row in read_rows(store.path, "requests"):
        if row["key"] == key.name:
            if row["body"] != key.body:
                raise KeyTaken(
                    f"the key {key.name!r} was used for another request",
                    hint="a new request needs a new key",
                )
            known = {record.training_id: record for record in store.all()}
            ids = json.loads(row["ids"])
            return Batch("", [known[each] for each in ids if each in known], None)
    return None


def claim(store: RecordStore, key: Key) -> None:
    """Write down the key of a request that makes no training, before anything is sent.

    Raises:
        KeyTaken: another request has it.
        NotWritten
    """
    if earlier_request(store, key) is None:
        query = "INSERT OR IGNORE INTO requests VALUES (?, ?, '[]')"
        store.change(lambda connection: connection.execute(query, [key.name, key.body]))
        earlier_request(store, key)


def begin(
    store: RecordStore, command: str, records: Sequence[Record], key: Key | None = None
) -> Batch:
    """Write the records of a new command's trainings, all or none.

    If another process was faster with the same key, the trainings are the ones that it has written.

    Args:
        command: What tells it from others; empty: nobody takes it up.

    Raises:
        KeyTaken: another request has the key.
        RecordError: they can't be written; nothing should be submitted without them.
    """
    if not command:
        store.add(*records)
        return Batch("", list(records), None)
    token = secrets.token_hex(8)
    ids = json.dumps([record.training_id for record in records])
    lock = _locked(_lock_file(store, token))
    if lock is None:  # nobody else knows a new token
        _lock_file(store, token).unlink(missing_ok=True)
        raise NotWritten(
            f"nothing was submitted: no file in {store.path.parent} can be locked", hint=NO_LOCKS
        )

    def insert(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO submissions VALUES (?, ?, ?)", [token, command, ids])
        if key:
            connection.execute("INSERT INTO requests VALUES (?, ?, ?)", [key.name, key.body, ids])

    batch = Batch(token, list(records), lock)
    try:
        store.add(*records, more=insert)
    except RecordError:
        let_go(store, batch)
        if key and (first := earlier_request(store, key)):
            return first
        raise
    return batch


def finish(store: RecordStore, batch: Batch) -> None:
    """Forget a submission: all is asked, and the answers are known and printed."""
    if batch.lock is None:
        return
    _remove(store, batch.token)
    let_go(store, batch)


def forget(store: RecordStore, training_id: str, is_open: Callable[[Record], bool]) -> None:
    """Forget the submissions of a training that were broken off, and that nothing is left of.

    Args:
        is_open: Whether a training still has to be submitted.
    """
    rows = [row for row in _rows(store) if training_id in json.loads(row["ids"])]
    known = {record.training_id: record for record in store.all()} if rows else {}
    for row in rows:
        if not any(is_open(known[each]) for each in json.loads(row["ids"]) if each in known):
            _remove(store, row["token"])


def let_go(store: RecordStore, batch: Batch) -> None:
    """Let the next command take up a submission that this process gives up."""
    if batch.lock is None:
        return
    batch.lock.close()
    with contextlib.suppress(OSError):
        _lock_file(store, batch.token).unlink(missing_ok=True)


def _remove(store: RecordStore, token: str) -> None:
    query = "DELETE FROM submissions WHERE token = ?"
    with contextlib.suppress(RecordError):  # else the same command only shows them once more
        store.change(lambda connection: connection.execute(query, [token]))


def _rows(store: RecordStore) -> list[sqlite3.Row]:
    return read_rows(store.path, "submissions")


def _lock_file(store: RecordStore, token: str) -> Path:
    return store.path.parent / f"{_PREFIX}{token}"


def _locked(path: Path) -> sqlite3.Connection | None:
    """Take a lock as long as this process lives; return None if another process holds it.

    SQLite's lock works on each system and file system on which the record itself does.

    Raises:
        RecordError: the file can't be made.
    """
    with contextlib.ExitStack() as stack:
        try:
            connection = stack.enter_context(contextlib.closing(sqlite3.connect(
                path, timeout=0, isolation_level=None, check_same_thread=False)))  # fmt: skip
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                return None
            raise NotWritten(
                f"{path} can't be made: {error}",
                hint=f"make room there, or check the permissions: {see_space(path.parent)}",
            ) from error
        stack.pop_all()
    return connection

"""What SQLite takes and gives for one training: values of columns, and later fields as JSON."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

_PATHS = ("folder", "manifest_path")
"""Their names may be any bytes."""


def sql_values(fields: Mapping[str, object], names: Iterable[str]) -> list[object]:
    """Return the values of these columns as SQLite takes them."""
    return [_sql_value(name, fields[name]) for name in names]


def _sql_value(name: str, value: object) -> object:
    """Return what SQLite takes: bytes for a path that is no text."""
    if not isinstance(value, str):
        return value
    raw = value.encode("utf-8", "surrogateescape" if name in _PATHS else "backslashreplace")
    with contextlib.suppress(UnicodeDecodeError):
        return raw.decode()
    return raw


def value_of(name: str, value: object) -> object:
    """Return a column's value; bytes in that of a path are one that is no text."""
    if name in _PATHS and isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value


def more_of(connection: sqlite3.Connection, training_id: str) -> dict[str, Any]:
    """Return the later fields of a training."""
    found = connection.execute("SELECT fields FROM more WHERE training_id = ?", [training_id])
    return fields_in((found.fetchone() or [""])[0])


def write_more(connection: sqlite3.Connection, training_id: str, fields: dict[str, Any]) -> None:
    """Write later fields; the others, and those of a newer dlctl, stay as they are."""
    after = more_of(connection, training_id) | fields
    connection.execute("INSERT OR REPLACE INTO more VALUES (?, ?)",
                       [training_id, json.dumps(after)])  # fmt: skip


def fields_in(text: str) -> dict[str, Any]:
    """Return the fields in a text of JSON; none if it holds none."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

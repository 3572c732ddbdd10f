"""The model's own log: one JSON line for each request to the strategy and each result."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class TrialLog:
    """Appends events; each is on disk when `write` returns.

    Raises:
        OSError: the file can't be read or written.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._path = path

    def events(self) -> Iterator[Event]:
        """Yield the events so far; cut a line that was never finished."""
        content = self._path.read_bytes()
        whole, newline, torn = content.rpartition(b"\n")
        if torn:
            os.ftruncate(self._file, len(whole) + len(newline))
            os.fsync(self._file)
        for line in whole.splitlines():
            yield json.loads(line)

    def write(self, *events: Event) -> None:
        """Append events, all or none of which a reader will see whole."""
        if not events:
            return
        text = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
        data, at = text.encode(), os.lseek(self._file, 0, os.SEEK_END)
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, at)  # a full disk: the next line must not follow half a one
            raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

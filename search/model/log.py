"""The model's own log: one JSON line for each request to the strategy and each result."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from search.errors import SearchError

Event = dict[str, Any]


class DamagedLogError(SearchError):
    """A line of the log is no event: the next start would fail alike."""


class TrialLog:
    """Appends events; each is on disk when `write` returns.

    A reader may see a last line that the model takes back, because it never reached the disk.

    Raises:
        OSError: the file can't be opened.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._path = path

    def events(self) -> Iterator[Event]:
        """Yield the events so far; cut a line that was never finished.

        Raises:
            DamagedLogError: a line is no JSON.
        """
        content = self._path.read_bytes()
        whole, newline, torn = content.rpartition(b"\n")
        if torn:
            os.ftruncate(self._file, len(whole) + len(newline))
            os.fsync(self._file)
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                yield json.loads(line)
            except ValueError as error:
                raise DamagedLogError(
                    f"line {number} of {self._path} can't be read: {error}",
                    hint="keep the lines before it and remove the rest: those trials run again",
                ) from error

    def write(self, *events: Event) -> None:
        """Append events, all or none of them.

        Raises:
            SearchError: The disk is full, or fails.
        """
        if not events:
            return
        text = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
        data, at = text.encode(), os.lseek(self._file, 0, os.SEEK_END)
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, at)  # a full disk: the next line must not follow half a one
            raise SearchError(
                f"{self._path} can't be written: {error.strerror}",
                hint="free some space, or raise the quota; the search then goes on by itself",
            ) from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

"""The model's own log: one JSON line for each request to the strategy and each result."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dlctl.contract.search import BEGIN, Newest
from search.errors import SearchError

Event = dict[str, Any]


class DamagedLogError(SearchError):
    """A line of the log is no event: the next start would fail alike."""


class TrialLog:
    """Appends events; each is on disk when `write` returns.

    A reader may see a last line that the model takes back, because it never reached the disk.

    Two models may write at the same time: one that hung, or was cut off, and the one that goes on
    for it. Each begins with a line of its own, and behind that the lines of others do not count.

    Raises:
        OSError: the file can't be opened.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._path, self._model = path, secrets.token_hex(8)
        self._end = 0
        """Up to here the log is known."""

    def events(self) -> Iterator[Event]:
        """Begin, and yield the events so far; cut a line that was never finished.

        Raises:
            DamagedLogError: a line is no JSON.
        """
        content = self._path.read_bytes()
        whole, newline, torn = content.rpartition(b"\n")
        if torn:
            os.ftruncate(self._file, len(whole) + len(newline))
        _, self._end = self._append([{"event": BEGIN}])
        known = self._path.read_bytes()[: self._end].splitlines()
        newest = Newest()
        for number, line in enumerate(known, 1):
            try:
                event = json.loads(line)
            except ValueError as error:
                raise DamagedLogError(
                    f"line {number} of {self._path} can't be read: {error}",
                    hint="keep the lines before it and remove the rest: those trials run again",
                ) from error
            if newest.counts(event):
                yield event

    def write(self, *events: Event) -> None:
        """Append events, all or none of them; without any only look whether they would count.

        Raises:
            SearchError: The disk is full, or fails; or another model has begun, and what was to be
                written counts for nobody.
        """
        self._look_at(os.lseek(self._file, 0, os.SEEK_END))
        if not events:
            return
        begin, end = self._append(events)
        self._look_at(begin)
        self._end = end

    def _append(self, events: Sequence[Event]) -> tuple[int, int]:
        """Write events to the end, wherever it is by now; return where they begin and end."""
        lines = [json.dumps(e | {"model": self._model}, separators=(",", ":")) for e in events]
        data, at = "\n".join([*lines, ""]).encode(), os.lseek(self._file, 0, os.SEEK_END)
        size = len(data)
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError as error:
            if os.lseek(self._file, 0, os.SEEK_END) == at + size - len(data):
                os.ftruncate(self._file, at)  # the next line must not follow half a one
            raise SearchError(
                f"{self._path} can't be written: {error.strerror}",
                hint="free some space, or raise the quota; the search then goes on by itself",
            ) from error
        end = os.lseek(self._file, 0, os.SEEK_CUR)
        return end - size, end

    def _look_at(self, end: int) -> None:
        """Look whether what others have written since the last look says that one has begun."""
        theirs = os.pread(self._file, max(0, end - self._end), self._end)
        if f'"event":"{BEGIN}"'.encode() in theirs:
            raise SearchError("another model of this search has begun: this one ends")
        self._end = end

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

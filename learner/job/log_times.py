"""Notes when a log grew, in a file beside it; nothing stands between a program and its log."""

from __future__ import annotations

import time
from pathlib import Path

from dlctl.contract import note_line, times_file

EVERY_S = 1.0
"""How often to look at the size between two writes."""
FREE_BYTES = 64 * 1024
SHARE = 4
"""Beyond `FREE_BYTES` the notes take at most a quarter of the space that the log takes."""


class LogTimes:
    """Notes the sizes of one log. If notes can't be written, they are lost, and nothing else."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._path = log.with_name(times_file(log.name))
        self._lines = ""
        self._noted_bytes = 0
        self._due = 0.0
        try:
            self._written_bytes = self._path.stat().st_size  # a restart goes on with the file
        except OSError:
            self._written_bytes = 0

    def look(self) -> None:
        """Note the size if it has changed; look once in `EVERY_S` at most."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + EVERY_S
            self._note()

    def write(self, last: bool = False) -> None:
        """Note the size if it has changed, and append the notes to their file.

        Args:
            last: whether the log has ended; then its size is noted whatever space the notes take.
        """
        self._note(last)
        if not self._lines:
            return
        lines, self._lines = self._lines.encode(), ""
        written = 0
        try:
            with self._path.open("ab", buffering=0) as file:
                written = file.write(lines) or 0
        except OSError:  # a full disk
            pass
        self._written_bytes += written
        if written < len(lines):
            self._noted_bytes = 0  # the next note stands for those that are lost

    def _note(self, last: bool = False) -> None:
        try:
            size_bytes = self._log.stat().st_size
        except OSError:
            return
        if size_bytes == self._noted_bytes:
            return
        line = note_line(time.time(), size_bytes)
        space_bytes = self._written_bytes + len(self._lines) + len(line)
        if last or space_bytes <= FREE_BYTES + size_bytes // SHARE:
            self._lines += line
            self._noted_bytes = size_bytes

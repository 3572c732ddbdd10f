"""The collector's progress, so that the next one goes on there, and its complaints."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from dlctl import contract

SCHEMA_VERSION = 1


class State:
    """The state file of one rank, written whole.

    Args:
        output: the file of metrics that the attempt's parsed lines go to.
    """

    def __init__(self, path: Path, output: Path, attempt: int) -> None:
        self._path, self._output, self._attempt = path, output, attempt
        found = _read(path)
        files = found.get("files")
        self.files: dict[str, Any] = files if isinstance(files, dict) else {}
        """By file what its feed keeps."""
        for name in [name for name in self.files if _is_over(name, attempt)]:
            del self.files[name]
        if found.get("attempt") == attempt:
            _cut(output, found.get("output_bytes"))

    def write(self) -> None:
        """Write the state; if that fails, the next collector reads some lines again."""
        known = _read(self._path).get("attempt")
        if isinstance(known, int) and known > self._attempt:
            return  # this collector was cut off, and another one has gone on
        content = {
            "schema_version": SCHEMA_VERSION,
            "attempt": self._attempt,
            "output_bytes": _size(self._output),
            "files": self.files,
        }
        with contextlib.suppress(OSError):
            contract.write_whole(self._path, json.dumps(content))


def _is_over(name: str, attempt: int) -> bool:
    """Return whether a file belongs to another attempt, so that nobody reads it any more."""
    attempts = contract.attempt_dir("")
    return name.startswith(attempts) and not name.startswith(f"{attempts}{attempt}/")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _cut(output: Path, known_bytes: object) -> None:
    """Remove lines that were written after the last state: their source is read again."""
    if isinstance(known_bytes, int) and 0 <= known_bytes < _size(output):
        with contextlib.suppress(OSError):
            os.truncate(output, known_bytes)


_MOST = 10
"""Further sentences are dropped."""


class Complaints:
    """Sentences for the learner's log."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._sentences: set[str] = set()

    def say(self, sentence: str) -> None:
        """Append a sentence, unless it was said before."""
        if sentence in self._sentences or len(self._sentences) >= _MOST:
            return
        self._sentences.add(sentence)
        line = f"dlctl: WARNING: {sentence}\n".encode("utf-8", "backslashreplace")
        with contextlib.suppress(OSError):  # without O_CREAT: a removed directory stays away
            descriptor = os.open(self._log, os.O_RDWR | os.O_APPEND)
            try:
                size = os.fstat(descriptor).st_size
                begun = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                os.write(descriptor, b"\n" + line if begun else line)
            finally:
                os.close(descriptor)

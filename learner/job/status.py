"""The `Status` file of a process, and its log. A full disk must never end a training.

The process that keeps a status also notes when its logs grow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dlctl.contract import State, Status, note_line, status_file, times_file, to_json, write_whole
from dlctl.contract.programs.mpi_words import LOST_OTHERS, without_frames
from dlctl.contract.programs.torchrun import summarize
from dlctl.contract.programs.tracebacks import shorten
from learner.job.batch import node_name

T = TypeVar("T")
INTERVAL_S = 5.0
LAST_LINES = 20
_TAIL_BYTES = 64 * 1024


class Heartbeat:
    """Rewrites a status file at every interval, and immediately when its state changes.

    Args:
        logs: relative to `job_dir`; the times at which they grow are noted.
    """

    def __init__(
        self, job_dir: Path, role: str, rank: int, attempt: int, logs: Sequence[str] = ()
    ) -> None:
        self.path = job_dir / status_file(attempt, role, rank)
        self._logs = [LogTimes(job_dir / log) for log in logs]
        self.warning = ""
        """Why the last write failed; empty if it worked."""
        self._due = 0.0
        now = time.time()
        self.status = Status(
            role=role,
            rank=rank,
            attempt=attempt,
            state=State.DEPLOYING,
            host=node_name(),
            pid=os.getpid(),
            started_at=now,
            heartbeat_at=now,
            heartbeat_interval_s=INTERVAL_S,
        )

    def set(self, **changes: Any) -> bool:
        """Change fields and write immediately; return whether that worked."""
        self.status = dataclasses.replace(self.status, **changes)
        return self._write()

    def beat(self, **changes: Any) -> None:
        """Change fields and write if the interval has passed."""
        self.status = dataclasses.replace(self.status, **changes)
        for log in self._logs:
            log.look()
        if time.monotonic() >= self._due:
            self._write()

    def _write(self) -> bool:
        written = self._write_status()
        for log in self._logs:
            log.write(last=self.status.state.final)
        return written

    def _write_status(self) -> bool:
        self._due = time.monotonic() + INTERVAL_S
        printed_at = max((log.grew_at for log in self._logs), default=0.0)
        self.status = dataclasses.replace(
            self.status, heartbeat_at=time.time(), printed_at=printed_at
        )
        try:
            write_whole(self.path, to_json(self.status))
        except OSError as error:
            self.warning = f"status can't be written: {error.strerror or error}"
            # Needs no disk space: a reader of the file still sees that this process is alive.
            with contextlib.suppress(OSError):
                os.utime(self.path)
            return False
        self.warning = ""
        return True


def end_line(exit_code: int | None, number: int | None) -> bytes:
    """Return the line that notes how a program has just ended."""
    words = ("-" if each is None else str(each) for each in (exit_code, number, time.time()))
    return f"{' '.join(words)}\n".encode()


def with_end(status: Status, path: Path) -> Status:
    """Return a status with the end of its program, if the watchdog has only noted that."""
    if status.state.final or status.exit_code is not None or status.signal is not None:
        return status
    try:
        *ended, at = path.read_text().split()
        code, number = (None if word == "-" else int(word) for word in ended)
        return dataclasses.replace(status, exit_code=code, signal=number, heartbeat_at=float(at))
    except (OSError, ValueError):
        return status


def last_lines(path: Path, count: int = LAST_LINES, since: int = 0) -> list[str]:
    """Return the last lines of a log, which may hold any bytes; none if it can't be read.

    Of a traceback only the user's part counts: the last lines of a deep one would not show it.

    Args:
        since: the offset in bytes at which to begin.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(since, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line.rstrip() for line in text.splitlines()]
    return [line[:2000] for line in summarize(shorten(without_frames(lines))) if line][-count:]


def write_patiently(path: Path, content: str, patience_s: float = 30.0) -> bool:
    """Write a file whole, retrying while that fails; return whether it worked in the end."""
    try:
        patiently(lambda: write_whole(path, content), patience_s)
    except OSError:
        return False
    return True


def patiently(action: Callable[[], T], patience_s: float) -> T:
    """Return what an action returns once it works: a disk may be full for a while.

    Raises:
        OSError: it did not work in this time.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            return action()
        except OSError:
            if time.monotonic() > until:
                raise
        time.sleep(0.5)


UNFINISHED = "ended before the training loop had finished"
"""The user's code, or something else, ended the process with exit code 0."""

STUCK = "printed an error, and hung in MPI until it was ended"
"""MPI_Finalize, which mpi4py calls after an exception, waits for all the others."""

UNHEEDED = "but the log of learner"
"""The beginning of a reason: a program has failed in spite of exit code 0."""

UNSAVED = "did not save its state within the grace period and was killed"
"""The learner was asked to save and stop, and was still running after the grace period."""


def has_saved(status: Status | None) -> bool:
    """Return whether a learner ended by itself, after saving all it had to save.

    Two others are HALTED as well: a program that had to be killed (its status has a signal), and a
    learner that died while all were stopping (its status has no exit code). SIGUSR2 is the halt
    itself, received by a process that had nothing left to do.
    """
    if status is None or status.state is not State.HALTED:
        return status is not None and status.state is State.COMPLETED
    if status.signal is not None:
        return status.signal == signal.SIGUSR2
    return status.exit_code not in (None, LOST_OTHERS)


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
        self._noted_bytes = self._size_bytes = 0
        self._due = 0.0
        self.grew_at = 0.0
        """When it was longer than at the look before; 0: never."""
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
        if size_bytes != self._size_bytes:
            self._size_bytes, self.grew_at = size_bytes, time.time()
        if size_bytes == self._noted_bytes:
            return
        line = note_line(time.time(), size_bytes)
        space_bytes = self._written_bytes + len(self._lines) + len(line)
        if last or space_bytes <= FREE_BYTES + size_bytes // SHARE:
            self._lines += line
            self._noted_bytes = size_bytes

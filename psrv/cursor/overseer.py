"""Inspect a cursor's file, and expel learners from it, without being one of them.

For the process that starts the learners: one whose node was given up may still live and hold its
locks, and must not keep its chunks. Nothing here waits for a lock, since its holder may be stopped.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from psrv.cursor.base import CursorError
from psrv.cursor.leases import PosixLocks
from psrv.cursor.table import SIZE_BYTES, Table

if TYPE_CHECKING:
    from typing import TypeAlias


Records: TypeAlias = "dict[int, int]"


def expel(path: Path, learner: int) -> bool:
    """Count a learner as dead: its chunks are given out again, and its next call fails.

    Args:
        path: The cursor's file, which this process must not have open.
        learner: The number that it drew (`FileCursor.learner`).

    Returns:
        False if the file is in use just now: call again. True also if it knows no such learner.

    Raises:
        CursorError: The file can't be used.
    """
    with _table(path) as table:
        if table is None:
            return not _is_there(path)
        for slot, record in table.records():
            if record[0] == learner:
                table.expel(slot)
        return True


def reported(path: Path) -> Records | None:
    """Return how many chunks each learner has reported done, by its number, dead ones included.

    Returns:
        None if the file is absent, or in use just now.
    """
    with _table(path) as table:
        return None if table is None else {abs(r[0]): r[1] for _, r in table.records()}


def progress(path: Path) -> tuple[int, int] | None:
    """Return how many samples were reported done, and how many all passes have.

    Returns:
        None if the file is absent, or in use just now.
    """
    with _table(path) as table:
        if table is None:
            return None
        samples, passes = table.identity()
        return table.state(samples, passes).done_samples, samples * passes


@contextmanager
def _table(path: Path) -> Iterator[Table | None]:
    with ExitStack() as stack:
        try:
            yield _open(path, stack)
        except OSError as error:  # it can't be opened, or its file system failed meanwhile
            raise _unusable(path, error) from error


def _open(path: Path, stack: ExitStack) -> Table | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    stack.callback(os.close, descriptor)  # this frees the lock
    if os.fstat(descriptor).st_size < SIZE_BYTES or not PosixLocks(descriptor, path).try_hold(0):
        return None  # it is not complete yet, or in use
    table = Table(memoryview(stack.enter_context(mmap.mmap(descriptor, SIZE_BYTES))).cast("q"))
    stack.callback(table.close)
    if table.is_new():
        return None
    table.load()
    return table


def _unusable(path: Path, error: OSError) -> CursorError:
    return CursorError(
        f"the cursor's file {path} can't be used: {error.strerror}",
        hint="it must be on a file system that all nodes share",
    )


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise _unusable(path, error) from error

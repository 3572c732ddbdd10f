"""Locks that the kernel frees when a process dies, and a check that a file system has them.

POSIX locks (fcntl), because `flock` stays held while a forked child lives. They belong to a
process, not to a descriptor, and closing *any* descriptor of the file frees all of them: open it
once.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

from psrv.cursor.base import CursorError

_lockf, _EXCLUSIVE, _UNLOCK = fcntl.lockf, fcntl.LOCK_EX, fcntl.LOCK_UN


class PosixLocks:
    """Locks on single bytes of one open file: byte 0 guards the file, others show who lives.

    Every method raises a CursorError if the file system refuses a lock.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path

    def lock(self) -> None:
        """Lock the file, once nobody else uses it."""
        try:
            _lockf(self._descriptor, _EXCLUSIVE, 1, 0)
        except OSError as error:
            raise self._refused(error) from error

    def unlock(self, byte: int = 0) -> None:
        """Unlock the file, or another byte."""
        try:
            _lockf(self._descriptor, _UNLOCK, 1, byte)
        except OSError as error:
            raise self._refused(error) from error

    def try_hold(self, byte: int) -> bool:
        """Lock a byte unless another living process has locked it."""
        try:
            _lockf(self._descriptor, _EXCLUSIVE | fcntl.LOCK_NB, 1, byte)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            raise self._refused(error) from error
        return True

    def _refused(self, error: OSError) -> CursorError:
        return CursorError(
            f"the file system refuses a lock on {self._path}: {error.strerror or error}",
            hint="it must have locks that hold on all nodes; if so, its server was away for "
            "too long: open the cursor again",
        )


def locks_work(path: Path, first: bool, barrier: Callable[[], object]) -> bool:
    """Return whether processes see one another's locks, and what was written before.

    Lustre may be mounted with locks that are local to a node: run this on two nodes before they
    share a cursor's file.

    Args:
        path: A new file in the folder of the cursor's file; removed at the end.
        first: True in exactly one of the processes.
        barrier: Waits for all the processes (`comm.Barrier`); called five times.

    Returns:
        True in the first process; what this process saw in each other.
    """
    if first:
        path.write_bytes(bytes(mmap.PAGESIZE))
    barrier()
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        descriptor = -1  # the others wait for us at the barriers
    try:
        return _prove(PosixLocks(descriptor, path), descriptor, first, barrier)
    finally:
        if descriptor >= 0:
            os.close(descriptor)
        if first:
            path.unlink()


def _prove(locks: PosixLocks, descriptor: int, first: bool, barrier: Callable[[], object]) -> bool:
    """Run the check; call the barrier four times whatever fails, since the others wait there."""
    memory = mmap.mmap(descriptor, mmap.PAGESIZE) if descriptor >= 0 else None
    sees = memory is not None and memory[0] == 0
    barrier()
    if first:
        sees = sees and _tries(locks)
        if memory:
            memory[0] = 1
    barrier()
    if not first:
        sees = sees and not _tries(locks)
    barrier()
    if first and memory:
        memory.close()  # this frees the lock, as closing any descriptor of the file does
    barrier()
    if not first and memory:
        sees = sees and _gets(locks) and memory[0] == 1
        memory.close()
    return sees


def _tries(locks: PosixLocks) -> bool:
    try:
        return locks.try_hold(0)
    except CursorError:  # this file system has no locks
        return True


def _gets(locks: PosixLocks, timeout_s: float = 10.0) -> bool:
    """Return whether the lock can be taken once the first process has freed it."""
    end = time.monotonic() + timeout_s
    while not locks.try_hold(0):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True

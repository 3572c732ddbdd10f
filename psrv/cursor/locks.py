"""Locks that the kernel frees when a process dies.

POSIX locks (fcntl), because `flock` stays held while a forked child lives. They belong to a
process, not to a descriptor, and closing *any* descriptor of the file frees all of them: open it
once.
"""

from __future__ import annotations

import fcntl
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

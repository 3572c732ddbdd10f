"""A learner's slot in a cursor's file: open the file, join, lock it for one operation, leave.

psrv.cursor.file decides what is given out; psrv.cursor.table defines the file's content.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dlctl import contract
from psrv.cursor.base import CursorError, CursorState, check_size
from psrv.cursor.table import CHANGES, SIZE_BYTES, SLOTS, SPARE_COUNT, USED, Table, slot_byte

_lockf, _EXCLUSIVE, _UNLOCK = fcntl.lockf, fcntl.LOCK_EX, fcntl.LOCK_UN
_open_here: set[tuple[int, int, int]] = set()
"""(process, device, inode): closing a second descriptor of a file would free the first's locks."""


class PosixLocks:
    """Locks on single bytes of one open file: byte 0 guards the file, others show who lives.

    The kernel frees them when the process dies. They are POSIX locks (fcntl), because `flock` stays
    held while a forked child lives. They belong to a process, not to a descriptor, and closing
    *any* descriptor of the file frees all of them: open it once.

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


class LeaseFile:
    """An open file, and a slot in it whose byte is locked.

    Between `_enter` and `_leave` this thread has the file to itself, and `_table` shows its
    content.
    """

    _locks_of: Callable[[int, Path], PosixLocks] = PosixLocks
    _table_of: Callable[[memoryview], Table] = Table

    def __init__(self, path: str | os.PathLike[str], samples: int, passes: int) -> None:
        check_size(samples, passes)
        self.samples = samples
        self.passes = passes
        self.path = Path(path)
        self._threads = threading.Lock()
        self._closed = True
        self.held_s = 0.0
        """How long the last operation kept the file locked; over a network each lock makes it
        longer."""
        self._entered_at = 0.0
        self._learner = 0
        self._slot = self._changes = -1
        self._memory: mmap.mmap | None = None
        self._attach()

    @property
    def learner(self) -> int:
        """Return this learner's number in the file, a new one each time it is opened."""
        return self._learner

    def close(self) -> None:
        """Close the file: what this learner holds is given out again."""
        with self._threads:
            if self._closed:
                return
            self._closed = True
            if self._process == os.getpid():  # a forked child must not free its own locks
                self._detach()

    # One operation, under the lock --------------------------------------------------------------

    def _enter(self) -> None:
        self._threads.acquire()
        try:
            if self._closed:
                raise CursorError("the cursor is closed already")
            if self._process != os.getpid():
                raise CursorError("a forked process uses its parent's cursor",
                                  hint="open a cursor of its own in each process")  # fmt: skip
            self._locks.lock()
        except BaseException:
            self._threads.release()
            raise
        self._entered_at = time.monotonic()
        try:
            self._table.load()
            if self._table.get(CHANGES) != self._changes:
                self._read_own_record()
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        try:
            self._locks.unlock()
        finally:
            self.held_s = time.monotonic() - self._entered_at
            self._threads.release()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self._enter()
        try:
            yield
        finally:
            self._leave()

    def _read_own_record(self) -> None:
        """Check that this learner counts as alive, which changes only with CHANGES."""
        if self._table.record(self._slot)[0] != self._learner:
            raise CursorError(
                f"this learner was found dead or expelled in {self.path}, and its chunks were "
                "given out again",
                hint="its node was given up; or else its locks were lost: open the file nowhere "
                "else in this process, on a file system whose locks hold on all nodes",
            )
        self._changes = self._table.get(CHANGES)

    def _is_alive(self, slot: int) -> bool:
        if slot == self._slot:
            return True
        if self._table.record(slot)[0] < 0:
            return False
        if free := self._locks.try_hold(slot_byte(slot)):
            self._locks.unlock(slot_byte(slot))
        return not free

    def _reclaim(self) -> None:
        """Make the leases of one dead learner spare, unless there are spare ones."""
        if self._table.get(SPARE_COUNT):
            return
        for slot, record in self._table.records():
            if slot != self._slot and any(record[2:]) and not self._is_alive(slot):
                self._table.take_back(slot)
                return

    # The file -----------------------------------------------------------------------------------

    def _attach(self) -> None:
        self._process = os.getpid()
        self._learner = secrets.randbits(62) + 1
        self._slot = self._changes = -1
        while not self._open():
            self._detach()  # the file was replaced meanwhile
        try:
            self._join()
            self._locks.unlock()
        except BaseException:
            self._detach()
            raise
        self._closed = False

    def _open(self) -> bool:
        """Open and lock the file; return False if it was replaced meanwhile."""
        try:
            self._descriptor, self._key = _open_once(self.path)
        except OSError as error:
            raise CursorError(f"the cursor's file {self.path} can't be opened: {error.strerror}",
                              hint="its folder must exist and be writable") from error  # fmt: skip
        self._locks = self._locks_of(self._descriptor, self.path)
        try:
            self._locks.lock()
            self._fill()
            self._memory = mmap.mmap(self._descriptor, SIZE_BYTES)
            self._table = self._table_of(memoryview(self._memory).cast("q"))
            return self._is_current()
        except OSError as error:
            self._detach()
            raise CursorError(f"the cursor's file {self.path} can't be used: {error.strerror}",
                              hint="put it on a file system that has locks and space"
                              ) from error  # fmt: skip
        except BaseException:
            self._detach()
            raise

    def _fill(self) -> None:
        size_bytes = os.fstat(self._descriptor).st_size
        if size_bytes < SIZE_BYTES:
            if os.pread(self._descriptor, 1, 0).strip(b"\0"):
                raise CursorError(f"{self.path} is no cursor's file, or was cut off",
                                  hint="give the cursor a path of its own")  # fmt: skip
            # Allocate now: a store into a page that has no disk space kills the process.
            os.posix_fallocate(self._descriptor, 0, SIZE_BYTES)

    def _is_current(self) -> bool:
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        return (there.st_dev, there.st_ino) == self._key[1:]

    def _join(self) -> None:
        if self._table.is_new():
            self._table.create(CursorState(self.samples, self.passes, 0))
        self._check_identity()
        self._table.load()
        if problem := self._table.problem():
            raise CursorError(
                f"the cursor's file {self.path} is damaged: {problem}",
                hint="a node that lost its power may leave it so: remove the file, and restore the "
                "state of the last checkpoint",
            )
        self._slot = self._find_slot()
        self._table.join(self._slot, self._learner)

    def _check_identity(self) -> None:
        try:
            identity = self._table.identity()
        except CursorError as error:
            raise CursorError(f"{self.path}: {error.message}",
                              hint="give the cursor a path of its own") from error  # fmt: skip
        if identity != (self.samples, self.passes):
            raise CursorError(
                f"{self.path} is the cursor of {identity[1]} passes over {identity[0]} samples, "
                f"not of {self.passes} over {self.samples}",
                hint="remove the file to start over, or give the cursor another path",
            )

    def _find_slot(self) -> int:
        """Return an unused slot, or else a dead learner's; its byte is locked."""
        used = self._table.get(USED)
        if used < SLOTS and self._locks.try_hold(slot_byte(used)):
            return used
        for slot, record in self._table.records():
            if not self._locks.try_hold(slot_byte(slot)):
                continue
            if not any(record[2:]):
                return slot
            if not self._table.get(SPARE_COUNT):
                self._table.take_back(slot)
                return slot
            self._locks.unlock(slot_byte(slot))
        raise CursorError(f"{self.path} has no slot for another learner: {SLOTS} have joined")

    def _replace(self, state: CursorState) -> None:
        """Replace the file by one that continues from a state."""
        others = [slot for slot in range(self._table.get(USED)) if slot != self._slot]
        if any(self._is_alive(slot) for slot in others):
            raise CursorError(f"other learners use {self.path}, so that it can't be restored",
                              hint="restore before any other learner starts")  # fmt: skip
        fresh = bytearray(SIZE_BYTES)
        with memoryview(fresh).cast("q") as words:
            Table(words).create(state)
        try:
            contract.write_whole(self.path, bytes(fresh), mode=0o600)
        except OSError as error:
            raise CursorError(f"{self.path} can't be replaced: {error.strerror}",
                              hint="its folder must have space") from error  # fmt: skip

    def _detach(self) -> None:
        """Close everything, which frees all locks."""
        if self._memory is not None:
            self._table.close()
            self._memory.close()
            self._memory = None
        _open_here.discard(self._key)
        os.close(self._descriptor)


def _open_once(path: Path) -> tuple[int, tuple[int, int, int]]:
    with contextlib.suppress(FileNotFoundError):
        there = path.stat()  # before there is a descriptor to close
        if (os.getpid(), there.st_dev, there.st_ino) in _open_here:
            raise CursorError(f"{path} is open in this process already",
                              hint="let its threads share one cursor")  # fmt: skip
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    found = os.fstat(descriptor)
    key = (os.getpid(), found.st_dev, found.st_ino)
    _open_here.add(key)
    return descriptor, key

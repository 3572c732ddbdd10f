"""Learners of one cursor's file that live and die within one process, at any store into it."""

from __future__ import annotations

import mmap
from typing import Any

from psrv.cursor import leases
from psrv.cursor.file import FileCursor
from psrv.cursor.table import SIZE_BYTES, Table


class Killed(BaseException):
    """What a process sees of kill -9, if it saw anything."""


class Fuse:
    """Counts stores into the file; burns at the one that it was set to."""

    left: int | None = None
    stores = 0

    def store(self) -> None:
        self.stores += 1
        if self.left is not None:
            if self.left == 0:
                raise Killed
            self.left -= 1


class Words:
    """A memoryview of which every store may be the last; a slice is stored word by word."""

    def __init__(self, words: memoryview, fuse: Fuse) -> None:
        self._words = words
        self._fuse = fuse

    def __getitem__(self, key: Any) -> Any:
        found = self._words[key]
        return list(found) if isinstance(key, slice) else found

    def __setitem__(self, key: Any, value: Any) -> None:
        places = range(*key.indices(len(self._words))) if isinstance(key, slice) else [key]
        values = list(value) if isinstance(key, slice) else [value]
        for place, one in zip(places, values, strict=True):
            self._fuse.store()
            self._words[place] = one

    def release(self) -> None:
        self._words.release()


class Locks:
    """The kernel's locks on one file, for the learners of this process."""

    def __init__(self, owners: dict[int, Locks]) -> None:
        self._owners = owners

    def lock(self) -> None:
        assert 0 not in self._owners, "left locked"
        self._owners[0] = self

    def unlock(self, byte: int = 0) -> None:
        assert self._owners.pop(byte) is self

    def try_hold(self, byte: int) -> bool:
        return self._owners.setdefault(byte, self) is self

    def release_all(self) -> None:
        for byte in [byte for byte, owner in self._owners.items() if owner is self]:
            del self._owners[byte]


class World:
    """One file and the learners that have it open."""

    def __init__(self, path: Any, samples: int, passes: int) -> None:
        self.path, self.samples, self.passes = path, samples, passes
        self.owners: dict[int, Locks] = {}
        world = self

        class Learner(FileCursor):
            fuse: Fuse

            def _locks_of(self, descriptor: int, path: Any) -> Any:
                return Locks(world.owners)

            def _table_of(self, words: memoryview) -> Table:
                return Table(Words(words, self.fuse))  # type: ignore[arg-type]

            def _look_for_dead(self, *, nothing_else: bool) -> None:
                """Look each time: on a busy machine a look takes long, and the next ones wait."""
                self._reclaim()

            def _detach(self) -> None:
                super()._detach()
                self._locks.release_all()

        self._kind = Learner

    def join(self, fuse: Fuse | None = None) -> Any:
        """Return a new learner; every take looks for the dead."""
        leases._open_here.clear()
        learner = self._kind.__new__(self._kind)
        learner.fuse = fuse or Fuse()
        learner.__init__(self.path, self.samples, self.passes, look_every_s=0)
        return learner

    def expel(self, learner: Any, fuse: Fuse | None = None) -> None:
        """Do what psrv.cursor.overseer does once it has the lock; the learner lives on."""
        with self.path.open("r+b") as file, mmap.mmap(file.fileno(), SIZE_BYTES) as memory:
            words = memoryview(memory).cast("q")
            table = Table(Words(words, fuse or Fuse()))  # type: ignore[arg-type]
            try:
                table.load()
                table.expel(next(s for s, r in table.records() if r[0] == learner.learner))
            finally:
                table.close()

    def kill(self, learner: Any) -> None:
        """End a learner as kill -9 does: nothing of its own runs."""
        learner.close()

"""A shard of the parameters in shared memory, which every learner of a node works on in place.

A file in /dev/shm, mapped by all (`multiprocessing.shared_memory` would unlink it when any of them
exits). A learner works on one block at a time, under a lock that the kernel frees when its holder
dies, and whole or not at all: it copies the block aside first, into memory of its own slot, makes
the block's sequence number odd, works, and makes it even again. Whoever finds an odd number under
the lock puts the copy back: the writer was killed. (A kill keeps the order of the stores.)
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from psrv.errors import ServerError
from psrv.shard.format import (
    ADDED,
    BLOCKS_AT,
    HOME,
    KEPT,
    LINE,
    ROUND,
    ROUND_RATE,
    SEQUENCE,
    SLOTS,
    SLOTS_AT,
    WRITER,
    ShardLayout,
    check_header,
    no_room,
)
from psrv.shard.header import ShardHeader
from psrv.shard.huge_pages import map_file
from psrv.shard.membership import KEPT_ADDED, KEPT_ROUND, KEPT_ROWS, Members

_lockf, _LOCK, _UNLOCK = fcntl.lockf, fcntl.LOCK_EX, fcntl.LOCK_UN
_TRY = fcntl.LOCK_EX | fcntl.LOCK_NB
_NAP_S = 1e-4
GROUP = 2
"""Blocks that are locked together by who works on all of them, and travel together. More would be
fewer frames, which are Python's work (60 µs); but what is on its way must stay in a core's cache:
groups of 4 were no faster (docs/benchmarks.md)."""

Operation = Callable[[Sequence[torch.Tensor], int], None]
"""Works in place on the parts of all rows that are in a block; also gets the block's number."""
_ROWS = 256


class Rows(NamedTuple):
    """Which rows an operation may change; of the others no copy is made for undoing."""

    first: int = 0
    end: int = _ROWS - 1
    """The one after the last; more than there are: all."""
    copied: bool = True
    """Before the operation; if False it copies them itself as it goes (psrv.solvers.native)."""


Changes = Rows | Callable[[int], Rows]
"""That, or what says so of a block when it is asked under its lock."""
Words = np.ndarray[Any, np.dtype[np.int64]]
ALL_ROWS = Rows()


def _wait_for_lock(descriptor: int, size: int, at: int) -> None:
    """Lock bytes of a file, however long that takes.

    The kernel may see a deadlock where there is none: to it all locks of a process are one owner's,
    and its threads hold and want locks of several files.
    """
    while True:
        try:
            _lockf(descriptor, _LOCK, size, at)
        except OSError as error:
            if error.errno != errno.EDEADLK:
                raise
            time.sleep(_NAP_S)
        else:
            return


def _do_nothing(parts: Sequence[torch.Tensor], block: int) -> None:
    """Leave a block as it is."""


class Shard(ShardHeader):
    """One process's view of a shard, for one thread at a time.

    One in a process: POSIX locks are a process's, and go when it closes any descriptor of the file.
    """

    def __init__(self, path: Path, layout: ShardLayout, attempt: int) -> None:
        """Map a shard that `create_shard` has made, and take a slot.

        Raises:
            ServerError: it is not there, of another model or attempt, or has no slot left.
        """
        self.path = path
        self.layout = layout
        self._process = os.getpid()
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise ServerError(
                f"there is no parameter server at {path}: {error.strerror}"
            ) from error
        try:
            mapping = map_file(self._descriptor, layout.size_bytes)
            self._words = mapping[: layout.rows_at_bytes].cast("q")
            self._reals = mapping[: layout.rows_at_bytes].cast("d")
            check_header(self._words, layout, attempt, path)
            self.members = Members(self._descriptor, self._words)
            self.slot = self._take_slot()
        except BaseException:
            os.close(self._descriptor)
            raise
        memory = torch.frombuffer(mapping, dtype=torch.uint8)
        self.rows = layout.rows(memory)
        """The weights, and what the solver keeps: each of shape (count,)."""
        step = layout.block_count
        self._blocks = list(zip(*[torch.split(row, step) for row in self.rows], strict=True))
        self._copies = [layout.copies(memory, slot) for slot in range(SLOTS)]
        self.asides = self._copies[self.slot]
        """Where this one's copies of a block are made: of each row, shape (block_count,)."""
        self._address = memory.data_ptr()
        # All blocks but the last one share them: a view for each is memory, of 10⁵ blocks 100 MB.
        last = len(self._blocks[-1][0])
        self._asides = [self.asides] * (len(self._blocks) - 1)
        self._asides.append([copy[:last] for copy in self.asides])
        self.lengths = [step] * (len(self._blocks) - 1) + [last]
        """How many elements each block has."""
        self._counts = ROUND if layout.kind == HOME else ADDED
        self._line = SLOTS_AT + self.slot * LINE
        starts = range(0, layout.blocks, GROUP)
        self.groups = [range(start, min(start + GROUP, layout.blocks)) for start in starts]
        """The blocks of each group."""
        self._mend()

    def _take_slot(self) -> int:
        """Take a slot, and memory for its copy of a block."""
        slot = self.members.take()
        if slot is None:
            raise ServerError(f"all {SLOTS} slots of {self.path} are taken by living learners")
        size = self.layout.slot_bytes
        try:
            start = self.layout.copies_at_bytes + slot * size
            os.posix_fallocate(self._descriptor, start, size)
        except OSError as error:
            raise no_room(self.path.parent, size, error) from error
        return slot

    def _mend(self) -> None:
        """Undo what the killed left unfinished, before a copy of theirs is overwritten.

        And before anybody reads a block's progress: a server may have a new slot.
        """
        for block in range(self.layout.blocks):
            if self._words[BLOCKS_AT + block * LINE] % 2:
                self.read_block(block, _do_nothing)

    def update(self, operation: Operation, first: int = 0, *, changes: Changes = ALL_ROWS) -> None:
        """Work on every block once, each whole or not at all, from about block number `first` on.

        What another learner has locked is left for later: nobody waits while there is something
        else to do.
        """
        busy = [
            group
            for group in self._groups(first)
            if not self._update(group, operation, changes, _TRY)
        ]
        for group in busy:
            self._update(group, operation, changes, _LOCK)

    def read(self, operation: Operation, first: int = 0) -> None:
        """Look at every block once, each as somebody's finished work has left it."""
        for group in self._groups(first):
            self._read(group, operation)

    def _groups(self, first: int) -> list[range]:
        """Return all groups of blocks, beginning with that of a block."""
        middle = first // GROUP
        return self.groups[middle:] + self.groups[:middle]

    def read_block(self, block: int, operation: Operation) -> None:
        """Look at one block."""
        self._read(range(block, block + 1), operation)

    def read_run(self, run: range, operation: Operation) -> None:
        """Look at neighbouring blocks, under one lock."""
        self._read(run, operation)

    def update_block(
        self, block: int, operation: Operation, *, changes: Changes = ALL_ROWS
    ) -> None:
        """Work on one block, once nobody else does."""
        self._update(range(block, block + 1), operation, changes, _LOCK)

    def update_run(self, run: range, operation: Operation, *, changes: Changes = ALL_ROWS) -> None:
        """Work on neighbouring blocks under one lock, on each whole or not at all."""
        self._update(run, operation, changes, _LOCK)

    def _read(self, run: range, operation: Operation) -> None:
        at, size = 8 * (BLOCKS_AT + run.start * LINE), 8 * LINE * len(run)
        _wait_for_lock(self._descriptor, size, at)
        try:
            for block in run:
                if self._words[BLOCKS_AT + block * LINE] % 2:
                    self._put_back(block)
                operation(self._blocks[block], block)
        finally:
            _lockf(self._descriptor, _UNLOCK, size, at)

    def _update(self, run: range, operation: Operation, changes: Changes, lock: int) -> bool:
        at, size = 8 * (BLOCKS_AT + run.start * LINE), 8 * LINE * len(run)
        if lock == _LOCK:
            _wait_for_lock(self._descriptor, size, at)
        else:
            try:
                _lockf(self._descriptor, lock, size, at)
            except (BlockingIOError, PermissionError):
                return False
        try:
            for block in run:
                self._work(block, operation, changes)
        except BaseException:
            for block in run:
                if self._words[BLOCKS_AT + block * LINE] % 2:
                    self._put_back(block)
            raise
        finally:
            _lockf(self._descriptor, _UNLOCK, size, at)
        return True

    def _work(self, block: int, operation: Operation, changes: Changes) -> None:
        words, at, mine = self._words, BLOCKS_AT + block * LINE, self._line
        parts, length = self._blocks[block], self.lengths[block]
        if words[at] % 2:
            self._put_back(block)
        first, end, copied = changes if isinstance(changes, Rows) else changes(block)
        if copied:
            asides = self._asides[block]
            for row in range(first, min(end, len(parts))):
                asides[row].copy_(parts[row])
        words[at + KEPT] = length if copied else 0
        words[mine + KEPT_ROUND] = words[at + ROUND]
        words[mine + KEPT_ADDED] = words[at + ADDED]
        words[mine + KEPT_ROWS] = first + _ROWS * end
        words[at + WRITER] = self.slot
        words[at] += 1
        operation(parts, block)
        words[at] += 1

    def _put_back(self, block: int) -> None:
        """Undo work that was not finished."""
        at = BLOCKS_AT + block * LINE
        words, writer = self._words, self._words[at + WRITER]
        its = SLOTS_AT + writer * LINE
        first, end = words[its + KEPT_ROWS] % _ROWS, words[its + KEPT_ROWS] // _ROWS
        parts, copies = self._blocks[block][first:end], self._copies[writer][first:end]
        kept = words[at + KEPT]
        for part, copy in zip(parts, copies, strict=True):
            part[:kept].copy_(copy[:kept])
        words[at + ROUND], words[at + ADDED] = words[its + KEPT_ROUND], words[its + KEPT_ADDED]
        words[at] -= 1

    def progress(self, block: int) -> tuple[int, int]:
        """Return a block's progress.

        In rounds: how many it has behind it, and the bits of who has added to the next one;
        otherwise how many pushes its weights have had, and, from bit COUNT_BITS on, the number of
        an exchange (of a relay: that is on its way; of a home: of the last one); in the bits below
        how many pushes the total of a relay has.
        """
        at = BLOCKS_AT + block * LINE
        return self._words[at + ROUND], self._words[at + ADDED]

    def all_progress(self) -> list[tuple[int, int]]:
        """Return the progress of every block, each as it was at some moment of late."""
        first, end = BLOCKS_AT, BLOCKS_AT + self.layout.blocks * LINE
        rounds = self._words[first + ROUND : end : LINE].tolist()
        return list(zip(rounds, self._words[first + ADDED : end : LINE].tolist(), strict=True))

    def all_rounds(self) -> Words:
        """Return a view of the first word of every block's progress."""
        return self._of_all(ROUND)

    def all_added(self) -> Words:
        """Return a view of the second word of every block's progress."""
        return self._of_all(ADDED)

    def all_sequences(self) -> Words:
        """Return a view of every block's sequence number: odd while somebody works on it.

        Or has been killed in that, which whoever locks it next undoes.
        """
        return self._of_all(SEQUENCE)

    def _of_all(self, word: int) -> Words:
        words: Words = np.frombuffer(self._words, dtype=np.int64)
        return words[BLOCKS_AT + word : BLOCKS_AT + self.layout.blocks * LINE : LINE]

    def set_progress(self, block: int, rounds: int, added: int) -> None:
        """Set that; only as part of an operation on the block, with which it is undone."""
        at = BLOCKS_AT + block * LINE
        self._words[at + ROUND], self._words[at + ADDED] = rounds, added

    def round_rate(self, block: int) -> float:
        """Return the learning rate of a block's round, which means nothing until one has added."""
        return self._reals[BLOCKS_AT + block * LINE + ROUND_RATE]

    def set_round_rate(self, block: int, rate: float) -> None:
        """Set that, as the first one who adds; an operation that is undone leaves nobody in it."""
        self._reals[BLOCKS_AT + block * LINE + ROUND_RATE] = rate

    def count_push(self, block: int) -> None:
        """Count a push at once; only as part of an operation on the block."""
        self._words[BLOCKS_AT + block * LINE + self._counts] += 1

    def kept_address(self, block: int) -> int:
        """Return where it is noted how much of a block has been copied aside: an int64.

        For operations that do so as they go; see Rows.
        """
        return self._address + 8 * (BLOCKS_AT + block * LINE + KEPT)

    def want_refresh(self) -> int:
        """Want one more of a relay; return what `refreshed` is once it is done."""

        def count(_: Sequence[torch.Tensor], __: int) -> None:
            self.refresh_wanted += 1

        self.read_block(0, count)  # under a lock: two learners may want it
        return self.refresh_wanted

    def close(self) -> None:
        """Give the slot back. The memory goes when the file is removed and nobody maps it."""
        if self._process == os.getpid():  # a forked child must not strike its parent off
            self.members.remove(self.slot)
        self._blocks, self._asides, self._copies, self.rows = [], [], [], []
        self.asides = []
        os.close(self._descriptor)


class ThreadedShard(Shard):
    """The same for several threads of a process, which take turns."""

    def __init__(self, path: Path, layout: ShardLayout, attempt: int) -> None:
        self._turn = threading.Lock()
        super().__init__(path, layout, attempt)

    def _read(self, run: range, operation: Operation) -> None:
        with self._turn:
            super()._read(run, operation)

    def _update(self, run: range, operation: Operation, changes: Changes, lock: int) -> bool:
        with self._turn:
            return super()._update(run, operation, changes, lock)

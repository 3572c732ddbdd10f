"""A shard of the parameters in shared memory, which every learner of a node updates in place.

A file in /dev/shm, mapped by all (`multiprocessing.shared_memory` would unlink it when any of them
exits). A learner works on one block at a time, under a lock that the kernel frees when its holder
dies, and whole or not at all: it copies the block into memory of its own slot, makes the block's
sequence number odd, works, and makes it even again. A process that finds an odd number under the
lock puts the copy back: the writer was killed. (A kill keeps the order of the stores.)
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
    COPIED,
    ELSEWHERE,
    EXPECTED,
    FURTHEST,
    LINE,
    PRIMARY,
    RATE,
    REFRESHED,
    ROUND,
    ROUND_RATE,
    SEQUENCE,
    SLOTS,
    SLOTS_AT,
    WANTED,
    WRITER,
    ShardLayout,
    check_header,
    map_shared,
    no_memory,
)
from psrv.shard.membership import UNDO_ADDED, UNDO_ROUND, UNDO_ROWS, Membership

_lockf, _LOCK, _UNLOCK = fcntl.lockf, fcntl.LOCK_EX, fcntl.LOCK_UN
_TRY = fcntl.LOCK_EX | fcntl.LOCK_NB
_NAP_S = 1e-4
GROUP = 2
"""Blocks that are locked together by an operation on all blocks, and travel together. More would be
fewer frames, which are Python's work (60 µs); but what is on its way must stay in a core's cache:
groups of 4 were no faster (docs/benchmarks.md)."""

Operation = Callable[[Sequence[torch.Tensor], int], None]
"""Works in place on a block's part of all rows; also gets the block's number."""
_ROWS = 256


class Rows(NamedTuple):
    """Which rows an operation may change; the others are not copied for undoing."""

    first: int = 0
    end: int = _ROWS - 1
    """One after the last; all rows if larger than their number."""
    copied: bool = True
    """Whether they are copied before the operation; if not, it copies them itself as it goes
    (psrv.solvers.native)."""


Changes = Rows | Callable[[int], Rows]
"""The rows that an operation may change; or a function that returns them for a block, called under
the block's lock."""
Words = np.ndarray[Any, np.dtype[np.int64]]
ALL_ROWS = Rows()


def _wait_for_lock(descriptor: int, size: int, at: int) -> None:
    """Lock bytes of a file, however long that takes.

    The kernel may see a deadlock where there is none: to it, all locks of a process have one owner,
    while its threads hold and want locks of several files.
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


class _Word:
    """A word of the shard's header, as an attribute."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, shard: Shard, _: object) -> int:
        return shard._words[self._place]

    def __set__(self, shard: Shard, value: int) -> None:
        shard._words[self._place] = value


class Shard:
    """One process's view of a shard, for one thread at a time.

    Only one per process: POSIX locks belong to the process, and go when it closes any descriptor of
    the file.
    """

    expected = _Word(EXPECTED)
    """How many learners have to join before the first round; 0 if nobody has said. It is 1 once
    they have: a learner that comes again waits for nobody."""
    elsewhere = _Word(ELSEWHERE)
    """On a replica, the smallest clock of other nodes' learners, as the primary told it last. In
    rounds: the first round that this node takes part in."""
    furthest_elsewhere = _Word(FURTHEST)
    """On a replica, the largest clock of other nodes' learners; not in rounds."""
    refresh_wanted = _Word(WANTED)
    """How often a learner has wanted the primary's newest weights in a replica; a counter."""
    refreshed = _Word(REFRESHED)
    """The value that `refresh_wanted` had when the newest complete refresh began."""

    def __init__(self, path: Path, layout: ShardLayout, attempt: int) -> None:
        """Map a shard that `create_shard` has made, and take a slot.

        Raises:
            ServerError: It is absent, belongs to another model or attempt, or has no free slot.
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
            memory = map_shared(self._descriptor, layout.size_bytes)
            header = memory.numpy().data[: layout.rows_at_bytes]
            self._words, self._reals = header.cast("q"), header.cast("d")
            check_header(self._words, layout, attempt, path)
            self.members = Membership(self._descriptor, self._words)
            self.slot = self._take_slot()
        except BaseException:
            os.close(self._descriptor)
            raise
        self.rows = layout.rows(memory)
        """The weights, and what the solver keeps: each of shape (count,)."""
        step = layout.block_count
        self._blocks = list(zip(*[torch.split(row, step) for row in self.rows], strict=True))
        self._copies = [layout.copies(memory, slot) for slot in range(SLOTS)]
        self.undo_copies = self._copies[self.slot]
        """Where this process copies a block before it changes it: for each row, shape
        (block_count,)."""
        self._address = memory.data_ptr()
        # All blocks but the last share these views: one for each block of 10⁵ would take 100 MB.
        last = len(self._blocks[-1][0])
        self._undo_views = [self.undo_copies] * (len(self._blocks) - 1)
        self._undo_views.append([copy[:last] for copy in self.undo_copies])
        self._counts = ROUND if layout.kind == PRIMARY else ADDED
        self._line = SLOTS_AT + self.slot * LINE
        starts = range(0, layout.blocks, GROUP)
        self.groups = [range(start, min(start + GROUP, layout.blocks)) for start in starts]
        """The blocks of each group."""
        self._undo_unfinished()

    def _take_slot(self) -> int:
        """Take a slot, and allocate memory for its copy of a block."""
        slot = self.members.take()
        if slot is None:
            raise ServerError(f"all {SLOTS} slots of {self.path} are in use by living learners")
        size = self.layout.slot_bytes
        try:
            start = self.layout.copies_at_bytes + slot * size
            os.posix_fallocate(self._descriptor, start, size)
        except OSError as error:
            raise no_memory(self.path.parent, size, error) from error
        return slot

    def _undo_unfinished(self) -> None:
        """Undo unfinished work of killed processes, before their undo copies are overwritten.

        And before anybody reads a block's progress: a server may have a new slot.
        """
        for block in range(self.layout.blocks):
            if self._words[BLOCKS_AT + block * LINE] % 2:
                self.read_block(block, _do_nothing)

    def update(self, operation: Operation, first: int = 0, *, changes: Changes = ALL_ROWS) -> None:
        """Update every block once, each whole or not at all, starting at about block `first`.

        Groups that another process has locked are left for later, so nobody waits while there is
        other work.
        """
        busy = [
            group
            for group in self._groups(first)
            if not self.update_run(group, operation, changes=changes, lock=_TRY)
        ]
        for group in busy:
            self.update_run(group, operation, changes=changes)

    def read(self, operation: Operation, first: int = 0) -> None:
        """Read every block once, each as finished work has left it."""
        for group in self._groups(first):
            self.read_run(group, operation)

    def _groups(self, first: int) -> list[range]:
        """Return all groups of blocks, beginning with that of a block."""
        middle = first // GROUP
        return self.groups[middle:] + self.groups[:middle]

    def read_block(self, block: int, operation: Operation) -> None:
        """Read one block."""
        self.read_run(range(block, block + 1), operation)

    def update_block(
        self, block: int, operation: Operation, *, changes: Changes = ALL_ROWS
    ) -> None:
        """Update one block, once nobody else works on it."""
        self.update_run(range(block, block + 1), operation, changes=changes)

    def read_run(self, run: range, operation: Operation) -> None:
        """Read neighbouring blocks, under one lock."""
        at, size = 8 * (BLOCKS_AT + run.start * LINE), 8 * LINE * len(run)
        _wait_for_lock(self._descriptor, size, at)
        try:
            for block in run:
                if self._words[BLOCKS_AT + block * LINE] % 2:
                    self._undo_block(block)
                operation(self._blocks[block], block)
        finally:
            _lockf(self._descriptor, _UNLOCK, size, at)

    def update_run(
        self, run: range, operation: Operation, *, changes: Changes = ALL_ROWS, lock: int = _LOCK
    ) -> bool:
        """Update neighbouring blocks under one lock, each whole or not at all.

        Returns:
            False if it is not to wait for the lock (_TRY), and another process has it.
        """
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
                    self._undo_block(block)
            raise
        finally:
            _lockf(self._descriptor, _UNLOCK, size, at)
        return True

    def _work(self, block: int, operation: Operation, changes: Changes) -> None:
        words, at, mine = self._words, BLOCKS_AT + block * LINE, self._line
        parts, undo_copies = self._blocks[block], self._undo_views[block]
        if words[at] % 2:
            self._undo_block(block)
        first, end, copied = changes if isinstance(changes, Rows) else changes(block)
        if copied:
            for row in range(first, min(end, len(parts))):
                undo_copies[row].copy_(parts[row])
        words[at + COPIED] = self.layout.block_count if copied else 0
        words[mine + UNDO_ROUND] = words[at + ROUND]
        words[mine + UNDO_ADDED] = words[at + ADDED]
        words[mine + UNDO_ROWS] = first + _ROWS * end
        words[at + WRITER] = self.slot
        words[at] += 1
        operation(parts, block)
        words[at] += 1

    def _undo_block(self, block: int) -> None:
        """Undo unfinished work on a block."""
        at = BLOCKS_AT + block * LINE
        words, writer = self._words, self._words[at + WRITER]
        its = SLOTS_AT + writer * LINE
        first, end = words[its + UNDO_ROWS] % _ROWS, words[its + UNDO_ROWS] // _ROWS
        parts, copies = self._blocks[block][first:end], self._copies[writer][first:end]
        for part, copy in zip(parts, copies, strict=True):
            kept = min(words[at + COPIED], len(part))
            part[:kept].copy_(copy[:kept])
        words[at + ROUND], words[at + ADDED] = words[its + UNDO_ROUND], words[its + UNDO_ADDED]
        words[at] -= 1

    def progress(self, block: int) -> tuple[int, int]:
        """Return a block's progress, two words.

        In rounds: how many have ended, and the mask of the ranks that have added to the next one.
        Otherwise: how many pushes its weights have had; and the number of an exchange from bit
        COUNT_BITS on (the unanswered one on a replica, the last one on a primary), above the number
        of pushes in a replica's total.
        """
        at = BLOCKS_AT + block * LINE
        return self._words[at + ROUND], self._words[at + ADDED]

    def all_progress(self) -> list[tuple[int, int]]:
        """Return the progress of every block, each as it was at some recent moment."""
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
        """Return a view of every block's sequence number, which is odd while somebody works on it.

        It stays odd if that process is killed, until the next one locks the block and undoes the
        work.
        """
        return self._of_all(SEQUENCE)

    def _of_all(self, word: int) -> Words:
        words: Words = np.frombuffer(self._words, dtype=np.int64)
        return words[BLOCKS_AT + word : BLOCKS_AT + self.layout.blocks * LINE : LINE]

    def set_progress(self, block: int, rounds: int, added: int) -> None:
        """Set a block's progress; only within an operation on the block, which undoes it, too."""
        at = BLOCKS_AT + block * LINE
        self._words[at + ROUND], self._words[at + ADDED] = rounds, added

    def round_rate(self, block: int) -> float:
        """Return the learning rate of a block's round; meaningless until somebody has added."""
        return self._reals[BLOCKS_AT + block * LINE + ROUND_RATE]

    def set_round_rate(self, block: int, rate: float) -> None:
        """Set the learning rate of a block's round; only its first member does.

        If that member's work is undone, the round has no members, and no rate.
        """
        self._reals[BLOCKS_AT + block * LINE + ROUND_RATE] = rate

    def count_push(self, block: int) -> None:
        """Count a push (not in rounds); only within an operation on the block."""
        self._words[BLOCKS_AT + block * LINE + self._counts] += 1

    def copied_address(self, block: int) -> int:
        """Return the address of the int64 that says how many elements of a block have an undo copy.

        For operations that copy as they go; see Rows.
        """
        return self._address + 8 * (BLOCKS_AT + block * LINE + COPIED)

    def expect(self, learners: int) -> None:
        """Lower the number of learners that the first round waits for, to 1 at least."""
        self.expected = min(self.expected, max(1, learners))

    @property
    def rate(self) -> float:
        """The newest learning rate on this node. Rounds keep their own (`round_rate`)."""
        return self._reals[RATE]

    @rate.setter
    def rate(self, rate: float) -> None:
        self._reals[RATE] = rate

    def want_refresh(self) -> int:
        """Ask for a refresh of a replica; return the value of `refreshed` once it is complete."""

        def count(_: Sequence[torch.Tensor], __: int) -> None:
            self.refresh_wanted += 1

        self.read_block(0, count)  # under a lock: two learners may ask at once
        return self.refresh_wanted

    def close(self) -> None:
        """Release the slot. The memory goes when the file is removed and nobody maps it."""
        if self._process == os.getpid():  # a forked child must not remove its parent
            self.members.remove(self.slot)
        self._blocks, self._undo_views, self._copies, self.rows = [], [], [], []
        self.undo_copies = []
        os.close(self._descriptor)


class ThreadedShard(Shard):
    """A shard for several threads of a process, which take turns."""

    def __init__(self, path: Path, layout: ShardLayout, attempt: int) -> None:
        self._turn = threading.Lock()
        super().__init__(path, layout, attempt)

    def read_run(self, run: range, operation: Operation) -> None:
        """Read neighbouring blocks, in this thread's turn."""
        with self._turn:
            super().read_run(run, operation)

    def update_run(
        self, run: range, operation: Operation, *, changes: Changes = ALL_ROWS, lock: int = _LOCK
    ) -> bool:
        """Update neighbouring blocks, in this thread's turn."""
        with self._turn:
            return super().update_run(run, operation, changes=changes, lock=lock)

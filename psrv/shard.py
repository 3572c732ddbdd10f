"""A shard of the parameters in shared memory, which every learner of a node works on in place.

A file in /dev/shm, mapped by all (`multiprocessing.shared_memory` would unlink it when any of them
exits). A learner works on one block at a time, under a lock that the kernel frees when its holder
dies, and whole or not at all: it copies the block aside first, into memory of its own slot, makes
the block's sequence number odd, works, and makes it even again. Whoever finds an odd number under
the lock puts the copy back: the writer was killed. (A kill keeps the order of the stores.)
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from psrv.errors import ServerError
from psrv.shard_file import (
    BLOCK_BYTES,
    BLOCKS_AT,
    LINE,
    SLOTS,
    SLOTS_AT,
    ShardLayout,
    check_header,
    no_room,
)

SEQUENCE, WRITER, ROUND, ADDED = range(4)
"""Words of a block: see the module; rounds that are complete, and who has added to the next."""
PROCESS, RANK, JOINED, KEPT_ROUND, KEPT_ADDED = range(5)
"""Words of a slot: its owner; its rank + 1 and first round; what its copy's block had there."""
_lockf, _LOCK, _UNLOCK = fcntl.lockf, fcntl.LOCK_EX, fcntl.LOCK_UN
_TRY = fcntl.LOCK_EX | fcntl.LOCK_NB

Operation = Callable[[Sequence[torch.Tensor], int], None]
"""Works in place on the parts of all rows that are in a block; also gets the block's number."""


def _do_nothing(parts: Sequence[torch.Tensor], block: int) -> None:
    """Leave a block as it is."""


class Shard:
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
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise ServerError(
                f"there is no parameter server at {path}: {error.strerror}"
            ) from error
        try:
            self._mapping = mmap.mmap(self._descriptor, layout.size_bytes)
            self._words = memoryview(self._mapping)[: layout.rows_at_bytes].cast("q")
            check_header(self._words, layout, attempt, path)
            self.slot = self._take_slot()
        except BaseException:
            os.close(self._descriptor)
            raise
        memory = torch.frombuffer(self._mapping, dtype=torch.uint8)
        self.rows = layout.rows(memory)
        """The weights, and what the solver keeps: each of shape (count,)."""
        step = layout.block_count
        self._blocks = list(zip(*[torch.split(row, step) for row in self.rows], strict=True))
        self._copies = [layout.copies(memory, slot) for slot in range(SLOTS)]
        self._asides = [
            [copy[: len(part)] for copy, part in zip(self._copies[self.slot], parts, strict=True)]
            for parts in self._blocks
        ]
        self._mend()

    def _mend(self) -> None:
        """Undo what a killed owner of this slot left unfinished, before its copy is overwritten."""
        for block in range(self.layout.blocks):
            at = BLOCKS_AT + block * LINE
            if self._words[at] % 2 and self._words[at + WRITER] == self.slot:
                self.read_block(block, _do_nothing)

    def _take_slot(self) -> int:
        """Lock the byte of a slot that no living process has."""
        for slot in range(SLOTS):
            with suppress(BlockingIOError, PermissionError):
                at = SLOTS_AT + slot * LINE
                _lockf(self._descriptor, _TRY, 1, 8 * at)
                size = len(self.layout.dtypes) * BLOCK_BYTES
                try:
                    os.posix_fallocate(
                        self._descriptor, self.layout.copies_at_bytes + slot * size, size
                    )
                except OSError as error:
                    raise no_room(self.path.parent, size, error) from error
                self._words[at + RANK] = 0
                self._words[at + PROCESS] = os.getpid()
                return slot
        raise ServerError(f"all {SLOTS} slots of {self.path} are taken by living learners")

    def update(self, operation: Operation, first: int = 0) -> None:
        """Work on every block once, each whole or not at all, from block number `first` on.

        A block that another learner has locked is left for later: nobody waits while there is
        something else to do.
        """
        blocks = self.layout.blocks
        left: Iterable[int] = [(first + n) % blocks for n in range(blocks)]
        busy = [block for block in left if not self.update_block(block, operation, wait=False)]
        for block in busy:
            self.update_block(block, operation)

    def read(self, operation: Operation, first: int = 0) -> None:
        """Look at every block once, each as somebody's finished work has left it."""
        for n in range(self.layout.blocks):
            self.read_block((first + n) % self.layout.blocks, operation)

    def read_block(self, block: int, operation: Operation) -> None:
        """Look at one block."""
        at = BLOCKS_AT + block * LINE
        _lockf(self._descriptor, _LOCK, 1, 8 * at)
        try:
            if self._words[at] % 2:
                self._put_back(block)
            operation(self._blocks[block], block)
        finally:
            _lockf(self._descriptor, _UNLOCK, 1, 8 * at)

    def update_block(self, block: int, operation: Operation, *, wait: bool = True) -> bool:
        """Work on one block; return False if it is locked, and `wait` is not set."""
        at = BLOCKS_AT + block * LINE
        try:
            _lockf(self._descriptor, _LOCK if wait else _TRY, 1, 8 * at)
        except (BlockingIOError, PermissionError):
            return False
        try:
            self._work(block, operation)
        finally:
            if self._words[at] % 2:
                self._put_back(block)
            _lockf(self._descriptor, _UNLOCK, 1, 8 * at)
        return True

    def _work(self, block: int, operation: Operation) -> None:
        words, at, parts = self._words, BLOCKS_AT + block * LINE, self._blocks[block]
        if words[at] % 2:
            self._put_back(block)
        for aside, part in zip(self._asides[block], parts, strict=True):
            aside.copy_(part)
        mine = SLOTS_AT + self.slot * LINE
        words[mine + KEPT_ROUND], words[mine + KEPT_ADDED] = words[at + ROUND], words[at + ADDED]
        words[at + WRITER] = self.slot
        words[at] += 1
        operation(parts, block)
        words[at] += 1

    def _put_back(self, block: int) -> None:
        """Undo work that was not finished."""
        at = BLOCKS_AT + block * LINE
        words, writer = self._words, self._words[at + WRITER]
        for part, copy in zip(self._blocks[block], self._copies[writer], strict=True):
            part.copy_(copy[: len(part)])
        its = SLOTS_AT + writer * LINE
        words[at + ROUND], words[at + ADDED] = words[its + KEPT_ROUND], words[its + KEPT_ADDED]
        words[at] -= 1

    def progress(self, block: int) -> tuple[int, int]:
        """Return how many rounds a block has behind it, and the bits of who added to the next."""
        at = BLOCKS_AT + block * LINE
        return self._words[at + ROUND], self._words[at + ADDED]

    def set_progress(self, block: int, rounds: int, added: int) -> None:
        """Set that; only as part of an operation on the block, with which it is undone."""
        at = BLOCKS_AT + block * LINE
        self._words[at + ROUND], self._words[at + ADDED] = rounds, added

    def enter(self, rank: int, first_round: int) -> None:
        """Say which learner has this slot, and from which round on it adds."""
        at = SLOTS_AT + self.slot * LINE
        self._words[at + JOINED] = first_round
        self._words[at + RANK] = rank + 1

    def members(self) -> list[tuple[int, int, int]]:
        """Return (rank, slot, first round) of all who have entered and are not known to be dead."""
        words, found = self._words, []
        for slot in range(SLOTS):
            at = SLOTS_AT + slot * LINE
            if rank := words[at + RANK]:
                found.append((rank - 1, slot, words[at + JOINED]))
        return found

    def strike_if_dead(self, slot: int) -> bool:
        """Return whether the owner of another slot is gone; it is no member then."""
        byte = 8 * (SLOTS_AT + slot * LINE)
        try:
            _lockf(self._descriptor, _TRY, 1, byte)
        except (BlockingIOError, PermissionError):
            return False
        self._words[SLOTS_AT + slot * LINE + RANK] = 0
        _lockf(self._descriptor, _UNLOCK, 1, byte)
        return True

    def done(self, block: int) -> int:
        """Return how often a block was worked on."""
        return self._words[BLOCKS_AT + block * LINE] // 2

    def close(self) -> None:
        """Give the slot back. The memory goes when the file is removed and nobody maps it."""
        self._words[SLOTS_AT + self.slot * LINE + RANK] = 0
        self._blocks, self._asides, self._copies, self.rows = [], [], [], []
        os.close(self._descriptor)

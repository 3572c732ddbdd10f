"""The file of a shard: its layout, and how it is made.

In 64-bit words of the machine's byte order:

    0     magic, digest of the layout, attempt, kind; how many learners have to join before the
          first round; the newest learning rate (float64; not in rounds); the smallest clock of
          other nodes' learners, and the largest; the number of the newest refresh of a replica
          that a learner has wanted, and of the newest that is complete
    64    a line of 8 words for each slot: see psrv.shard.membership
    576   a line of 8 words for each block: sequence number, slot of its last writer, and its
          progress, two words. In rounds: complete rounds, and bits of the ranks that have added
          to the next one, and that one's learning rate (float64). Otherwise: pushes that its
          weights have had; and the number of an exchange with another node, from COUNT_BITS on,
          above the number of pushes in a replica's total. Sixth: how many elements have a copy
          for undoing

and from page to page the rows (the weights first), and for each slot a copy of one block of every
row. Rows are padded to whole blocks.

A *primary* has the rows that the solver keeps, and in rounds the sum as its last one. A *replica*,
on every other node, has a copy of the weights, and the total (in rounds the sum) of the pushes of
its node's learners that have not gone to the primary yet.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from psrv.errors import ServerError

BLOCK_BYTES = 256 * 1024
"""The unit of work: the block, its copy and the learner's own values fit a cache."""
SLOTS = 64
"""Processes that may have a shard mapped at a time."""
LINE = 8
"""Words of a slot or a block: a cache line."""
SLOTS_AT = 64
BLOCKS_AT = SLOTS_AT + SLOTS * LINE
MAGIC, DIGEST, ATTEMPT, KIND, EXPECTED, RATE, ELSEWHERE, FURTHEST, WANTED, REFRESHED = range(10)
SEQUENCE, WRITER, ROUND, ADDED, ROUND_RATE, COPIED = range(6)
"""Words of a block; ROUND and ADDED are its progress."""
COUNT_BITS = 20
COUNT = (1 << COUNT_BITS) - 1
"""Masks the number of pushes in a replica's total, in a block's second word of progress (not in
rounds)."""
PRIMARY, REPLICA = 1, 2
"""Kinds of shards: see the module."""
UNFINISHED = ".shard-*"
"""Names of shards in the making, and of folders for what is made before them."""
NEVER = 1 << 62
"""The clock of nobody: no learner waits for it."""
_MAGIC = int.from_bytes(b"DLshard4", "little")


@dataclass(frozen=True)
class ShardLayout:
    """The contents of a shard; the same on every learner."""

    count: int
    """Elements of a row."""
    dtypes: tuple[torch.dtype, ...]
    """The rows' dtypes, the weights' first."""
    model: str
    """A digest of names, shapes and dtypes, which tells models apart."""
    kind: int = PRIMARY

    @property
    def block_count(self) -> int:
        """Return the number of elements in a block."""
        return BLOCK_BYTES // max(dtype.itemsize for dtype in self.dtypes)

    @property
    def blocks(self) -> int:
        """Return the number of blocks."""
        return -(-self.count // self.block_count)

    @property
    def rows_at_bytes(self) -> int:
        """Return where the first row begins."""
        return _up(8 * (BLOCKS_AT + self.blocks * LINE), mmap.PAGESIZE)

    @property
    def copies_at_bytes(self) -> int:
        """Return where the slots' copies begin."""
        padded = self.blocks * self.block_count
        return self.rows_at_bytes + sum(
            _up(padded * dtype.itemsize, mmap.PAGESIZE) for dtype in self.dtypes
        )

    @property
    def slot_bytes(self) -> int:
        """Return the size of a slot's copy of a block."""
        return len(self.dtypes) * BLOCK_BYTES

    @property
    def size_bytes(self) -> int:
        """Return the size of the file."""
        return self.copies_at_bytes + SLOTS * self.slot_bytes

    def digest(self) -> int:
        """Return a number that differs where learners' models or solvers do."""
        text = f"{self.count} {self.dtypes} {self.model} {self.kind} {BLOCK_BYTES} {SLOTS}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")

    def rows(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """Return the rows in a mapping (uint8), each of shape (count,)."""
        start, found = self.rows_at_bytes, []
        for dtype in self.dtypes:
            found.append(memory[start : start + self.count * dtype.itemsize].view(dtype))
            padded = self.blocks * self.block_count
            start += _up(padded * dtype.itemsize, mmap.PAGESIZE)
        return found

    def copies(self, memory: torch.Tensor, slot: int) -> list[torch.Tensor]:
        """Return a slot's copy of a block of every row, each of shape (block_count,)."""
        start, found = self.copies_at_bytes + slot * self.slot_bytes, []
        for dtype in self.dtypes:
            found.append(memory[start : start + self.block_count * dtype.itemsize].view(dtype))
            start += BLOCK_BYTES
        return found


def create_shard(
    path: Path,
    layout: ShardLayout,
    attempt: int,
    *,
    learners: int = 0,
    fill: Callable[[Sequence[torch.Tensor]], None] | None = None,
    had: Sequence[int] = (),
) -> None:
    """Make a shard, which appears under its name once it is complete.

    Args:
        path: Where.
        layout: What it holds.
        attempt: The training's.
        learners: How many have to join before the first round: all on a primary, those of the node
            on a replica. 0: as many as the learners that join say.
        fill: Fills the rows, which are zeros; see `from_snapshot`.
        had: How many rounds, or pushes, each block has had; none if empty.

    Raises:
        ServerError: There is not enough shared memory (the message has both numbers), or no such
            folder.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ServerError(f"{path} can't be created: {error.strerror}") from error
    try:
        _reserve(descriptor, layout, path)
        header = memoryview(bytearray(8 * SLOTS_AT)).cast("q")
        header[MAGIC], header[DIGEST], header[ATTEMPT] = _MAGIC, layout.digest(), attempt
        header[KIND], header[EXPECTED] = layout.kind, learners
        header[ELSEWHERE] = NEVER if layout.kind == PRIMARY else 0
        os.pwrite(descriptor, header, 0)
        memory = map_shared(descriptor, layout.size_bytes)
        words = memory.numpy().data[: layout.rows_at_bytes].cast("q")
        for block, count in enumerate(had):
            words[BLOCKS_AT + block * LINE + ROUND] = count
        if fill is not None:
            fill(layout.rows(memory))
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def map_shared(descriptor: int, size_bytes: int) -> torch.Tensor:
    """Map a file to read and write: uint8, shape (size_bytes,), until its last view is gone.

    mmap.mmap would keep a copy of the descriptor and close it with the mapping, at any time: that
    frees all POSIX locks of this process on the file, also those of a shard opened since.
    """
    path = f"/proc/self/fd/{descriptor}"
    return torch.from_file(path, shared=True, size=size_bytes, dtype=torch.uint8)


def map_reserved(path: Path, size_bytes: int) -> mmap.mmap:
    """Map a file in shared memory, made if it is absent, with all its memory allocated.

    Raises:
        ServerError: There is not enough.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
        return mmap.mmap(descriptor, size_bytes)
    except OSError as error:
        raise no_memory(path.parent, size_bytes, error) from error
    finally:
        os.close(descriptor)


def _reserve(descriptor: int, layout: ShardLayout, path: Path) -> None:
    try:
        os.posix_fallocate(descriptor, 0, layout.rows_at_bytes)
        os.ftruncate(descriptor, layout.size_bytes)
        # Allocate all rows now: a full /dev/shm is an error here, and not a SIGBUS later.
        os.posix_fallocate(descriptor, 0, layout.copies_at_bytes)
    except OSError as error:
        raise no_memory(path.parent, layout.copies_at_bytes, error) from error


def from_snapshot(path: Path, rows: int) -> Callable[[Sequence[torch.Tensor]], None]:
    """Return a `fill` that reads the first rows of a file that has them one after another, raw.

    Raises (when it is called):
        ServerError: There is no such file, or it is too short.
    """

    def fill(into: Sequence[torch.Tensor]) -> None:
        for number, row in enumerate(into[:rows]):
            read_row(path, number, row)

    return fill


def read_row(path: Path, number: int, into: torch.Tensor) -> None:
    """Read a row of a snapshot.

    Raises:
        ServerError: There is no such file, or it is too short.
    """
    wanted = into.numel() * into.element_size()
    try:
        with path.open("rb") as file:
            file.seek(number * wanted)
            found = file.readinto(into.view(torch.uint8).numpy().data) if wanted else 0
    except OSError as error:
        raise ServerError(f"{path} can't be read: {error.strerror}") from error
    if found != wanted:
        raise ServerError(
            f"{path} is not a snapshot of this shard: row {number} has {found} of {wanted} bytes"
        )


def kind_of(path: Path) -> int:
    """Return the kind of a shard; not for a process that has it mapped.

    (A process loses its POSIX locks on a file when it closes any descriptor of it.)

    Raises:
        ServerError: The file is no shard, or absent.
    """
    try:
        with path.open("rb") as file:
            words = memoryview(file.read(8 * SLOTS_AT).ljust(8 * SLOTS_AT, b"\0")).cast("q")
    except OSError as error:
        raise ServerError(f"there is no parameter server at {path}: {error.strerror}") from error
    if words[MAGIC] != _MAGIC or words[KIND] not in (PRIMARY, REPLICA):
        raise ServerError(f"{path} is no shard of a parameter server")
    return words[KIND]


def no_memory(folder: Path, size_bytes: int, error: OSError) -> ServerError:
    """Return the error that says how much shared memory is needed and free."""
    return ServerError(
        f"{folder} can't hold a shard of the parameter server ({error.strerror}): "
        f"{needed_and_free(size_bytes, shutil.disk_usage(folder).free)}",
        hint="use more nodes or shards, or make /dev/shm larger",
    )


def needed_and_free(wanted_bytes: int, free_bytes: int) -> str:
    """Return what is needed, rounded up, and what is free, rounded down: the numbers differ."""
    return f"{-(-wanted_bytes // 2**20):,} MiB are needed, {free_bytes // 2**20:,} MiB are free"


def check_header(words: memoryview, layout: ShardLayout, attempt: int, path: Path) -> None:
    """Check that a shard is this learner's.

    Raises:
        ServerError: It belongs to another model or another attempt.
    """
    if words[MAGIC] != _MAGIC:
        raise ServerError(f"{path} is no shard of a parameter server")
    if words[ATTEMPT] != attempt:
        raise ServerError(
            f"{path} belongs to attempt {words[ATTEMPT]}, and this learner to attempt {attempt}",
            hint="it was replaced, and ends",
        )
    if words[DIGEST] != layout.digest():
        raise ServerError(
            f"the parameter server of {path} has another model, or another solver",
            hint="build the same model on every learner, from the same arguments",
        )


def _up(size: int, step: int) -> int:
    return -(-size // step) * step

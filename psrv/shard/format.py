"""The file of a shard: where everything lies, and how it is made.

In 64-bit words of the machine's byte order:

    0     magic, digest of the layout, attempt, kind; how many learners are to join before a round;
          the newest learning rate (float64; not in rounds); the smallest clock of the learners of
          other nodes; how often a learner has wanted a relay to be brought up to date, and which
          time it was
    64    a line of 8 words for each slot: see psrv.shard.membership
    576   a line of 8 words for each block: sequence number, slot of its last writer, and its
          progress, two words. In rounds: rounds that are complete, and bits of the ranks that have
          added to the next one; and that one's learning rate (float64). Otherwise: pushes that its
          weights have had; and from COUNT_BITS on the number of an exchange with another node,
          below how many are in the total of a relay. The sixth: of how many elements there is a
          copy for undoing

and from page to page the rows (the weights first), and for each slot a copy of one block of every
row. Rows are padded to whole blocks.

A *home* has the rows that the solver keeps, and in rounds the sum as its last one. A *relay*, on a
node that is not the shard's home, has a replica of the weights, and the total (in rounds the sum)
of what this node's learners have pushed since it went to the home.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from psrv.errors import ServerError
from psrv.shard.huge_pages import map_file, use_huge_pages

BLOCK_BYTES = 256 * 1024
"""What is worked on at a time: the block, its copy and the learner's own values fit a cache."""
SLOTS = 64
"""Learners that may have a shard mapped at a time."""
LINE = 8
"""Words that a slot or a block has to itself: a cache line."""
SLOTS_AT = 64
BLOCKS_AT = SLOTS_AT + SLOTS * LINE
MAGIC, DIGEST, ATTEMPT, KIND, EXPECTED, RATE, ELSEWHERE, FURTHEST, WANTED, REFRESHED = range(10)
SEQUENCE, WRITER, ROUND, ADDED, ROUND_RATE, KEPT = range(6)
"""Words of a block; ROUND and ADDED are its progress."""
COUNT_BITS = 20
COUNT = (1 << COUNT_BITS) - 1
"""Of a block's second word of progress, but in rounds: how many pushes the total of a relay has."""
HOME, RELAY = 1, 2
"""Kinds of shards: see the module."""
UNFINISHED = ".shard-*"
"""Names of shards that are being made, and of folders for what is made before."""
NEVER = 1 << 62
"""The clock of nobody: it is waited for by none."""
_MAGIC = int.from_bytes(b"DLshard4", "little")


@dataclass(frozen=True)
class ShardLayout:
    """What a shard holds; the same on every learner."""

    count: int
    """Elements of a row."""
    dtypes: tuple[torch.dtype, ...]
    """Of the rows, the weights' first."""
    model: str
    """Tells models apart: a digest of names, shapes and dtypes."""
    kind: int = HOME

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
    """Make a shard. It appears under its name when it is whole.

    Args:
        path: Where.
        layout: What it holds.
        attempt: Of the training.
        learners: How many are to join before the first round: of a home all learners, of a relay
            those of its node. 0: as many as those who join say.
        fill: Gets the rows, which are zeros; see `from_snapshot`.
        had: How many rounds, or pushes, each block has behind it; none if it is empty.

    Raises:
        ServerError: there is not enough shared memory, with both numbers; or no such folder.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ServerError(f"{path} can't be made: {error.strerror}") from error
    try:
        _reserve(descriptor, layout, path)
        header = memoryview(bytearray(8 * SLOTS_AT)).cast("q")
        header[MAGIC], header[DIGEST], header[ATTEMPT] = _MAGIC, layout.digest(), attempt
        header[KIND], header[EXPECTED] = layout.kind, learners
        header[ELSEWHERE] = NEVER if layout.kind == HOME else 0
        os.pwrite(descriptor, header, 0)
        mapping = map_file(descriptor, layout.size_bytes)
        words = mapping[: layout.rows_at_bytes].cast("q")
        for block, count in enumerate(had):
            words[BLOCKS_AT + block * LINE + ROUND] = count
        use_huge_pages(mapping, layout.copies_at_bytes)
        if fill is not None:
            fill(layout.rows(torch.frombuffer(mapping, dtype=torch.uint8)))
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _reserve(descriptor: int, layout: ShardLayout, path: Path) -> None:
    try:
        os.posix_fallocate(descriptor, 0, layout.rows_at_bytes)
        os.ftruncate(descriptor, layout.size_bytes)
        # All rows now: a full /dev/shm is said here, and not by SIGBUS later.
        os.posix_fallocate(descriptor, 0, layout.copies_at_bytes)
    except OSError as error:
        raise no_room(path.parent, layout.copies_at_bytes, error) from error


def from_snapshot(path: Path, rows: int) -> Callable[[Sequence[torch.Tensor]], None]:
    """Return a `fill` that reads so many rows of a file that has them one after another, raw.

    Raises (when it is called):
        ServerError: there is no such file, or it ends too early.
    """

    def fill(into: Sequence[torch.Tensor]) -> None:
        for number, row in enumerate(into[:rows]):
            read_row(path, number, row)

    return fill


def read_row(path: Path, number: int, into: torch.Tensor) -> None:
    """Read a row of a snapshot.

    Raises:
        ServerError: there is no such file, or it ends too early.
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
            f"{path} is no snapshot of this shard: its row {number} has {found} of {wanted} bytes"
        )


def kind_of(path: Path) -> int:
    """Return whether a shard is a home or a relay; not for a process that has it mapped.

    (POSIX locks go when a process closes any descriptor of their file.)

    Raises:
        ServerError: it is no shard, or not there.
    """
    try:
        with path.open("rb") as file:
            words = memoryview(file.read(8 * SLOTS_AT).ljust(8 * SLOTS_AT, b"\0")).cast("q")
    except OSError as error:
        raise ServerError(f"there is no parameter server at {path}: {error.strerror}") from error
    if words[MAGIC] != _MAGIC or words[KIND] not in (HOME, RELAY):
        raise ServerError(f"{path} is no shard of a parameter server")
    return words[KIND]


def no_room(folder: Path, size_bytes: int, error: OSError) -> ServerError:
    """Return the error that says what is needed and what there is."""
    free = os.statvfs(folder)
    return ServerError(
        f"{folder} can't hold a shard of the parameter server ({error.strerror}): "
        f"{room(size_bytes, free.f_bavail * free.f_frsize)}",
        hint="use more nodes or shards, or give /dev/shm more room",
    )


def room(wanted_bytes: int, free_bytes: int) -> str:
    """Return what is needed, rounded up, and what there is, rounded down: numbers that differ."""
    return f"{-(-wanted_bytes // 2**20):,} MiB are needed, {free_bytes // 2**20:,} MiB are free"


def check_header(words: memoryview, layout: ShardLayout, attempt: int, path: Path) -> None:
    """Refuse what is not this learner's shard.

    Raises:
        ServerError: it is of another model or another attempt.
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

"""The file of a shard: where everything lies, and how it is made.

In 64-bit words of the machine's byte order:

    0     magic, digest of the layout, attempt
    64    a line of 8 words for each slot: process id, rank + 1, its first round, and two words
          that were kept with its copy of a block
    576   a line of 8 words for each block: sequence number, slot of its last writer, rounds that
          are complete, bits of the ranks that have added to the next one

and from page to page the rows (the weights first), and for each slot a copy of one block of every
row. Rows are padded to whole blocks.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from psrv.errors import ServerError

BLOCK_BYTES = 256 * 1024
"""What is worked on at a time: the block, its copy and the learner's own values fit a cache."""
SLOTS = 64
"""Learners that may have a shard mapped at a time."""
LINE = 8
"""Words that a slot or a block has to itself: a cache line."""
SLOTS_AT = 64
BLOCKS_AT = SLOTS_AT + SLOTS * LINE
MAGIC, DIGEST, ATTEMPT = 0, 1, 2
_MAGIC = int.from_bytes(b"DLshard1", "little")


@dataclass(frozen=True)
class ShardLayout:
    """What a shard holds; the same on every learner."""

    count: int
    """Elements of a row."""
    dtypes: tuple[torch.dtype, ...]
    """Of the rows, the weights' first."""
    model: str
    """Tells models apart: a digest of names, shapes and dtypes."""

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
    def size_bytes(self) -> int:
        """Return the size of the file."""
        return self.copies_at_bytes + SLOTS * len(self.dtypes) * BLOCK_BYTES

    def digest(self) -> int:
        """Return a number that differs where learners' models or solvers do."""
        text = f"{self.count} {self.dtypes} {self.model} {BLOCK_BYTES} {SLOTS}"
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
        start, found = self.copies_at_bytes + slot * len(self.dtypes) * BLOCK_BYTES, []
        for dtype in self.dtypes:
            found.append(memory[start : start + self.block_count * dtype.itemsize].view(dtype))
            start += BLOCK_BYTES
        return found


def create_shard(path: Path, layout: ShardLayout, attempt: int) -> None:
    """Make a shard of zeros. It appears under its name when it is whole.

    Raises:
        ServerError: there is not enough shared memory; with both numbers.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, layout.rows_at_bytes)
        os.ftruncate(descriptor, layout.size_bytes)
        # All rows now: a full /dev/shm is said here, and not by SIGBUS later.
        os.posix_fallocate(descriptor, 0, layout.copies_at_bytes)
        header = memoryview(bytearray(24)).cast("q")
        header[MAGIC], header[DIGEST], header[ATTEMPT] = _MAGIC, layout.digest(), attempt
        os.pwrite(descriptor, header, 0)
        unfinished.rename(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise no_room(path.parent, layout.copies_at_bytes, error) from error
    finally:
        os.close(descriptor)


def no_room(folder: Path, size_bytes: int, error: OSError) -> ServerError:
    """Return the error that says what is needed and what there is."""
    free = os.statvfs(folder)
    return ServerError(
        f"{folder} can't hold a shard of the parameter server ({error.strerror}): "
        f"{size_bytes / 2**20:,.0f} MiB are needed, "
        f"{free.f_bavail * free.f_frsize / 2**20:,.0f} MiB are free",
        hint="use more nodes or shards, or give /dev/shm more room",
    )


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

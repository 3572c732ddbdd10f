"""The structure of a share: an HDF5 file, built in memory, with holes in place of large pieces.

HDF5 itself never writes to the disk: if the disk is full and HDF5 can't close a file, the process
crashes later.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# HDF5's own locking fails on some shared file systems; a share has one writer.
os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")
import h5py  # noqa: E402

Array = NDArray[Any]
PAGE_BYTES = 4096
"""The alignment that O_DIRECT needs for addresses, offsets and sizes."""
LARGE_BYTES = 16 * PAGE_BYTES
"""A piece of at least this size begins on a page boundary and is written without HDF5."""


class Holes:
    """A sparse file in memory: ranges that were never written take no memory."""

    BLOCK_BYTES = 64 * 1024

    def __init__(self) -> None:
        self._blocks: dict[int, bytearray] = {}
        self._position = 0
        self.size_bytes = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to an offset; return the new position."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size_bytes}
        self._position = start[whence] + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def write(self, data: Any) -> int:
        """Write at the position."""
        view = memoryview(data).cast("B")
        for number, start, done, count in self._spans(len(view)):
            block = self._blocks.setdefault(number, bytearray(self.BLOCK_BYTES))
            block[start : start + count] = view[done : done + count]
        self._position += len(view)
        self.size_bytes = max(self.size_bytes, self._position)
        return len(view)

    def readinto(self, target: Any) -> int:
        """Read from the position on."""
        view = memoryview(target).cast("B")
        size_bytes = max(0, min(len(view), self.size_bytes - self._position))
        for number, start, done, count in self._spans(size_bytes):
            block = self._blocks.get(number) or bytes(self.BLOCK_BYTES)
            view[done : done + count] = block[start : start + count]
        self._position += size_bytes
        return size_bytes

    def truncate(self, size_bytes: int | None = None) -> int:
        """Set the size."""
        self.size_bytes = self._position if size_bytes is None else size_bytes
        return self.size_bytes

    def flush(self) -> None:
        """Do nothing: there is no disk."""

    def blocks(self) -> Iterator[tuple[int, memoryview]]:
        """Yield the blocks that were written, each with its offset."""
        for number in sorted(self._blocks):
            start = number * self.BLOCK_BYTES
            yield start, memoryview(self._blocks[number])[: max(0, self.size_bytes - start)]

    def _spans(self, size_bytes: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (block, offset in it, offset in the data, bytes) for a range from the position."""
        done = 0
        while done < size_bytes:
            number, start = divmod(self._position + done, self.BLOCK_BYTES)
            count = min(self.BLOCK_BYTES - start, size_bytes - done)
            yield number, start, done, count
            done += count


def make_structure(pieces: Sequence[tuple[str, Array]]) -> tuple[Holes, list[int]]:
    """Build a file with a contiguous dataset per piece; write only the small pieces.

    Returns:
        The file, and the offset of each piece's data in it, in bytes.
    """
    target = Holes()
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, target)
    access.set_alignment(LARGE_BYTES, PAGE_BYTES)
    file = h5py.h5f.create(b"share", h5py.h5f.ACC_TRUNC, fapl=access)
    try:
        offsets = [_create_dataset(file, name, array) for name, array in pieces]
    finally:
        file.close()
    return target, offsets


def _create_dataset(file: Any, name: str, array: Array) -> int:
    """Create one dataset and return the offset of its data."""
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space = h5py.h5s.create_simple((array.size,))
    kind = h5py.h5t.py_create(array.dtype)
    dataset = h5py.h5d.create(file, name.encode(), kind, space, dcpl=creation)
    if 0 < array.nbytes < LARGE_BYTES:
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(array))
    return int(dataset.get_offset() or 0)

"""Everything that saving does to a disk. Tests put a disk in its place that fails."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlctl.contract import sync_directory
from learner.checkpoint.layout import MARKER_FILE

# HDF5's own locking fails on some shared file systems; a share has one writer.
os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")
import h5py  # noqa: E402

Array = NDArray[Any]
PAGE_BYTES = 4096
"""What O_DIRECT wants of addresses, offsets and sizes."""
LARGE_BYTES = 16 * PAGE_BYTES
"""From here on a piece begins at a page of its own and is written past HDF5."""


class Disk:
    """The disk."""

    def make_directory(self, path: Path) -> None:
        """Make a directory, and those above it, unless it is there."""
        path.mkdir(parents=True, exist_ok=True)

    def create_share(self, path: Path, pieces: Sequence[tuple[str, Array]]) -> list[int]:
        """Make an HDF5 file with a contiguous dataset for each piece; the small ones are written.

        Returns:
            Where the data of each piece begins in the file, in bytes.
        """
        access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
        access.set_alignment(LARGE_BYTES, PAGE_BYTES)
        file = h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, fapl=access)
        try:
            return [_create_dataset(file, name, array) for name, array in pieces]
        finally:
            file.close()

    def reserve(self, descriptor: int, size_bytes: int) -> None:
        """Take the room for a file at once: a full disk is met before the work, not after it."""
        call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
        if call is None:  # not Linux
            return
        call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        if call(descriptor, 0, 0, size_bytes) != 0:
            number = ctypes.get_errno()
            if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise OSError(number, os.strerror(number))

    def write_at(self, descriptor: int, data: memoryview, offset_bytes: int) -> None:
        """Write bytes at a place of a file."""
        while data:
            done = os.pwrite(descriptor, data, offset_bytes)
            data, offset_bytes = data[done:], offset_bytes + done

    def write_file(self, path: Path, content: bytes) -> None:
        """Write a small file, whole and durable."""
        part = path.with_name(f"{path.name}.part")
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)

    def sync(self, descriptor: int) -> None:
        """Make a file's content durable."""
        os.fsync(descriptor)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        sync_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        """Give a directory its final name."""
        source.rename(target)

    def remove(self, path: Path) -> None:
        """Remove a file or a directory, the marker first: what is half removed is not complete."""
        if not path.is_dir():
            path.unlink(missing_ok=True)
            return
        (path / MARKER_FILE).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)


def _create_dataset(file: Any, name: str, array: Array) -> int:
    """Make one dataset and return where its data begins."""
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

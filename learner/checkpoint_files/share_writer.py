"""Write one learner's share: structure with h5py, large pieces without, checksums in parallel.

Large pieces are written with O_DIRECT if the file system supports it: that runs at the disk's own
speed and leaves the CPU free for the checksums (and for training). Never imports torch.
"""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from learner.checkpoint_files import layout
from learner.checkpoint_files.disk import Disk
from learner.checkpoint_files.layout import BLOCK_BYTES, ShareRecord, StoredPiece
from learner.checkpoint_files.publish import Order, remove_quietly
from learner.checkpoint_files.share_format import LARGE_BYTES, PAGE_BYTES, Array

_WRITE_BYTES = 16 * 1024**2


def write_share(
    path: Path, rank: int, pieces: Sequence[tuple[str, Array]], disk: Disk
) -> ShareRecord:
    """Write a share and make it durable; return its record.

    Args:
        path: the HDF5 file.
        rank: the learner's rank.
        pieces: names, and contiguous arrays of shape (n,).
        disk: the disk to write to.

    Raises:
        OSError: the disk is full, or the file system fails.
    """
    offsets = disk.create_share(path, pieces)
    with ThreadPoolExecutor(1) as beside:
        sums = [beside.submit(block_sums, _bytes(array)) for _, array in pieces]
        try:
            _write_large(path, pieces, offsets, disk)
        except BaseException:
            beside.shutdown(cancel_futures=True)
            raise
        stored = [
            StoredPiece(name, array.dtype.str, array.size, offset, crc32.result())
            for (name, array), offset, crc32 in zip(pieces, offsets, sums, strict=True)
        ]
    size_bytes = path.stat().st_size
    return ShareRecord(rank, size_bytes, rest_sum(path, size_bytes, stored), stored)


def write_part(order: Order, pieces: Sequence[tuple[str, Array]], disk: Disk) -> str | None:
    """Write one learner's share and its record; return the error, or None on success."""
    share = order.temporary / layout.share_file(order.rank)
    try:
        disk.make_directory(order.temporary)
        record = write_share(share, order.rank, pieces, disk)
        disk.sync_directory(order.temporary)
        disk.write_file(order.temporary / layout.record_file(order.rank), layout.to_bytes(record))
    except OSError as error:
        remove_quietly(share, disk)  # on a full disk, makes space for the failure file
        problem = str(error) or type(error).__name__
        leave_failure(order, problem, disk)
        return problem
    return None


def leave_failure(order: Order, problem: str, disk: Disk) -> None:
    """Write the failure file, which tells rank 0's writer that there will be no share."""
    with contextlib.suppress(OSError):
        disk.make_directory(order.temporary)
        disk.write_file(order.temporary / layout.failure_file(order.rank), problem.encode())


def block_sums(data: memoryview) -> list[int]:
    """Return the CRC-32 of each block of `BLOCK_BYTES`."""
    return [zlib.crc32(data[n : n + BLOCK_BYTES]) for n in range(0, len(data), BLOCK_BYTES)]


def rest_sum(path: Path, size_bytes: int, pieces: Sequence[StoredPiece]) -> int:
    """Return the CRC-32 of all bytes of a share that belong to no piece."""
    value, position = 0, 0
    with path.open("rb", buffering=0) as file:
        for piece in sorted(pieces, key=lambda p: p.offset_bytes):
            if piece.count == 0:
                continue
            value = _sum_of(file.fileno(), position, piece.offset_bytes, value)
            position = piece.offset_bytes + piece.count * np.dtype(piece.dtype).itemsize
        return _sum_of(file.fileno(), position, size_bytes, value)


def _sum_of(descriptor: int, start: int, end: int, value: int) -> int:
    while start < end:
        block = os.pread(descriptor, min(BLOCK_BYTES, end - start), start)
        if not block:
            break
        value, start = zlib.crc32(block, value), start + len(block)
    return value


def _write_large(
    path: Path, pieces: Sequence[tuple[str, Array]], offsets: Sequence[int], disk: Disk
) -> None:
    with _opened(path, os.O_WRONLY) as plain, _opened_direct(path) as opened:
        direct = opened
        disk.reserve(plain, path.stat().st_size)
        for (_, array), offset in zip(pieces, offsets, strict=True):
            if array.nbytes < LARGE_BYTES:
                continue
            data, done = _bytes(array), 0
            if direct is not None and _is_aligned(array, offset):
                done = len(data) // PAGE_BYTES * PAGE_BYTES
                if not _write_direct(disk, direct, data[:done], offset):
                    direct, done = None, 0
            _write(disk, plain, data[done:], offset + done)
        disk.sync(plain)


def _write_direct(disk: Disk, descriptor: int, data: memoryview, offset: int) -> bool:
    """Write with O_DIRECT; return False if the file system does not support it after all."""
    try:
        _write(disk, descriptor, data, offset)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def _write(disk: Disk, descriptor: int, data: memoryview, offset: int) -> None:
    for start in range(0, len(data), _WRITE_BYTES):
        disk.write_at(descriptor, data[start : start + _WRITE_BYTES], offset + start)


def _is_aligned(array: Array, offset: int) -> bool:
    return offset % PAGE_BYTES == 0 and array.ctypes.data % PAGE_BYTES == 0


def _bytes(array: Array) -> memoryview:
    return memoryview(array.view(np.uint8).data)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _opened_direct(path: Path) -> Iterator[int | None]:
    """Open a file with O_DIRECT; None if the file system does not support it."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | getattr(os, "O_DIRECT", 0))
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)

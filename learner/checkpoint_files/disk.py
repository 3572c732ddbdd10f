"""Every disk operation of a save. Tests replace this class by a disk that fails."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from dlctl.contract import sync_directory
from learner.checkpoint_files.layout import MARKER_FILE
from learner.checkpoint_files.share_format import Array, make_structure


class Disk:
    """The real disk."""

    def make_directory(self, path: Path) -> None:
        """Create a directory and its parent; all folders above the parent must exist.

        A whole job directory that somebody removed is therefore not created again.
        """
        path.parent.mkdir(exist_ok=True)
        path.mkdir(exist_ok=True)

    def create_share(self, path: Path, pieces: Sequence[tuple[str, Array]]) -> list[int]:
        """Create an HDF5 file with a contiguous dataset per piece; write only the small pieces.

        Returns:
            The offset of each piece's data in the file, in bytes.
        """
        structure, offsets = make_structure(pieces)
        with path.open("wb", buffering=0) as file:
            file.truncate(structure.size_bytes)
            for start, content in structure.blocks():
                self.write_at(file.fileno(), content, start)
        return offsets

    def reserve(self, descriptor: int, size_bytes: int) -> None:
        """Reserve the space of a file, so that a full disk is noticed before the work."""
        call = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
        if call is None:  # not Linux
            return
        call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        if call(descriptor, 0, 0, size_bytes) != 0:
            number = ctypes.get_errno()
            if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise OSError(number, os.strerror(number))

    def write_at(self, descriptor: int, data: memoryview, offset_bytes: int) -> None:
        """Write bytes at an offset of a file."""
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
        """Remove a file or a directory; the marker first, so that no half is taken as complete."""
        if not path.is_dir():
            path.unlink(missing_ok=True)
            return
        (path / MARKER_FILE).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)

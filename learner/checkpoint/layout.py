"""The names and files of a checkpoint, and the few things that are done to a disk.

checkpoints/
  step-000000000120/     a complete checkpoint: there under this name or not at all
    state.h5             text and arrays of the packed state (tree.py)
    complete.json        a `Marker`: written last; sizes and checksums of the files beside it
  .tmp-…                 one being written, or left by a crash
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from dlctl.contract import sync_directory
from learner.checkpoint.tree import Packed

# HDF5's own locking fails on some shared file systems; a checkpoint has one writer.
os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")
import h5py  # noqa: E402

SCHEMA_VERSION = 1
STATE_FILE = "state.h5"
MARKER_FILE = "complete.json"
TEMPORARY_PREFIX = ".tmp-"
_PREFIX = "step-"
_BLOCK_BYTES = 8 * 1024**2


class DamagedCheckpoint(Exception):
    """A checkpoint is not whole; says what was seen."""


@dataclass(frozen=True)
class FileRecord:
    """One file of a checkpoint."""

    size_bytes: int
    crc32: int


@dataclass(frozen=True)
class Marker:
    """What complete.json holds."""

    step: int
    files: dict[str, FileRecord]
    settings: dict[str, int] = field(default_factory=dict)
    """What must be the same to go on: learners, seed, batch_size, samples."""
    schema_version: int = SCHEMA_VERSION


def directory_name(step: int) -> str:
    """Return the name of the checkpoint after `step` steps."""
    return f"{_PREFIX}{step:012d}"


def steps_present(root: Path) -> list[int]:
    """Return the steps of all checkpoint directories, the newest first, whole or not."""
    if not root.is_dir():
        return []
    names = [path.name.removeprefix(_PREFIX) for path in root.glob(f"{_PREFIX}*")]
    return sorted((int(name) for name in names if name.isdigit()), reverse=True)


def read_marker(directory: Path) -> Marker:
    """Return the marker, having compared the sizes of the files with it.

    Raises:
        DamagedCheckpoint: there is none, it can't be read, or a file has another size.
    """
    try:
        raw = json.loads((directory / MARKER_FILE).read_bytes())
        files = {name: FileRecord(**record) for name, record in raw["files"].items()}
        marker = Marker(int(raw["step"]), files, dict(raw["settings"]), int(raw["schema_version"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(f"{MARKER_FILE} is missing or damaged ({error})") from error
    if marker.schema_version > SCHEMA_VERSION:
        raise DamagedCheckpoint(f"it was written by a newer version ({marker.schema_version})")
    for name, record in files.items():
        path = directory / name
        size_bytes = path.stat().st_size if path.is_file() else -1
        if size_bytes != record.size_bytes:
            raise DamagedCheckpoint(f"{name} has {size_bytes} bytes, not {record.size_bytes}")
    return marker


def checksum(path: Path) -> int:
    """Return the CRC-32 of a file's content."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            value = zlib.crc32(block, value)
    return value


def read_state(path: Path) -> Packed:
    """Read what `Disk.write_state` wrote."""
    with h5py.File(path, "r") as file:
        text = bytes(file["text"][()]).decode()
        count = int(file.attrs["arrays"])
        return Packed(text, [file[f"arrays/{index:06d}"][()] for index in range(count)])


class Disk:
    """Everything that saving does to a disk. Tests put one in its place that fails."""

    def make_directory(self, path: Path) -> None:
        """Make a directory, and those above it."""
        path.mkdir(parents=True)

    def write_state(self, path: Path, packed: Packed) -> None:
        """Write a packed state as HDF5 and make it durable."""
        with h5py.File(path, "w") as file:
            file.create_dataset("text", data=np.frombuffer(packed.text.encode(), dtype=np.uint8))
            file.attrs["arrays"] = len(packed.arrays)
            for index, array in enumerate(packed.arrays):
                file.create_dataset(f"arrays/{index:06d}", data=array)
        self._sync(path)

    def record(self, path: Path) -> FileRecord:
        """Return size and checksum of a file, read back from the disk (or its cache)."""
        return FileRecord(path.stat().st_size, checksum(path))

    def write_marker(self, path: Path, marker: Marker) -> None:
        """Write the marker and make it durable."""
        path.write_text(json.dumps(asdict(marker), indent=2) + "\n")
        self._sync(path)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        sync_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        """Give a directory its final name."""
        source.rename(target)

    def remove(self, path: Path) -> None:
        """Remove a directory, the marker first: what is half removed is not complete."""
        (path / MARKER_FILE).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)

    def _sync(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

"""The names, files and records of a checkpoint (docs/recover.md). Standard library only.

checkpoints/
  step-000000000120/     a complete checkpoint: only complete ones get this name
    share-<rank>.h5      what one learner wrote: one contiguous dataset for each piece
    share-<rank>.json    a `ShareRecord`: the offset of each piece and the checksums of its blocks
    state.json           the tree that refers to the tensors, and each tensor's shape and dtype
    complete.json        a `Marker`: written last; sizes and checksums of the other files
  .tmp-…                 a checkpoint being written, or left by a crash
  .removed-…             such a leftover, being removed
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dlctl.contract.ground.safe_text import without_prefix, without_suffix
from learner.errors import UserFault
from learner.system.files import put_back

SCHEMA_VERSION = 2
TREE_FILE = "state.json"
MARKER_FILE = "complete.json"
TEMPORARY_PREFIX = ".tmp-"
REMOVED_PREFIX = ".removed-"
BLOCK_BYTES = 4 * 1024**2
"""A piece is checked in blocks of this size, the last one shorter."""
_PREFIX = "step-"
_REPLACED = "-replaced"
_DIGITS = 12
"""At least: a program of the user's may name its own checkpoints step-7."""


class DamagedCheckpoint(Exception):
    """A checkpoint is not complete; the message gives the damage."""


class OtherVersion(UserFault):
    """A checkpoint has another layout version: it is neither read nor removed."""


@dataclass(frozen=True)
class FileRecord:
    """One file of a checkpoint."""

    size_bytes: int
    crc32: int | None = None
    """CRC-32 of the whole content; None for a share, whose checksums are in its `ShareRecord`."""


@dataclass(frozen=True)
class Marker:
    """The content of complete.json."""

    step: int
    learners: int
    """How many learners have a share: with a parameter server, only learner 0."""
    files: dict[str, FileRecord]
    settings: dict[str, int] = field(default_factory=dict)
    """Settings that must be the same for a resume, and the training's number of learners."""
    epoch: int | None = None
    """How many epochs are finished."""
    written_at: float = 0.0
    """When the marker was written, in seconds since 1970."""
    kept_for_ever: bool = False
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class StoredPiece:
    """One dataset of a share."""

    name: str
    """`<tensor>:<first element>`; `rank` and `rank:<tensor>` for the learner's own state."""
    dtype: str
    """NumPy's name; |u1 for the raw bytes of a dtype that NumPy does not know."""
    count: int
    """The number of elements of `dtype`."""
    offset_bytes: int
    """The offset of the data in the file."""
    crc32: list[int]
    """CRC-32 of each block of `BLOCK_BYTES`."""


@dataclass(frozen=True)
class ShareRecord:
    """A writer's record of its share, written once the share is safe on the disk."""

    rank: int
    size_bytes: int
    rest_crc32: int
    """CRC-32 of all bytes that belong to no piece: the structure of the HDF5 file."""
    pieces: list[StoredPiece]
    schema_version: int = SCHEMA_VERSION


def share_file(rank: int) -> str:
    """Return the name of a learner's share."""
    return f"share-{rank}.h5"


def record_file(rank: int) -> str:
    """Return the name of the record of a learner's share."""
    return f"share-{rank}.json"


def failure_file(rank: int) -> str:
    """Return the name of the file in which a writer records why there is no share."""
    return f"share-{rank}.failed"


def disown_leftovers(root: Path) -> None:
    """Rename the unfinished checkpoints of earlier attempts, so that these can't complete them.

    What one of them had moved aside when it died is put back.
    """
    for path in root.glob(f"{TEMPORARY_PREFIX}*"):
        if path.name.endswith(_REPLACED) and (path / MARKER_FILE).exists():
            name = without_suffix(path.name, _REPLACED)
            if put_back(path, path.with_name(name[name.rindex(_PREFIX) :])):
                continue
        with contextlib.suppress(FileNotFoundError):
            path.rename(path.with_name(f"{REMOVED_PREFIX}{path.name}"))


def replaced(temporary: Path, final: Path) -> Path:
    """Return where a checkpoint is moved aside by the writer of a temporary folder."""
    return final.with_name(f"{temporary.name}-{final.name}{_REPLACED}")


def directory_name(step: int) -> str:
    """Return the name of the checkpoint after `step` steps."""
    return f"{_PREFIX}{step:0{_DIGITS}d}"


def steps_present(root: Path) -> list[int]:
    """Return the steps of all checkpoint directories, newest first, complete or not.

    Raises:
        OSError: the file system fails.
    """
    try:
        names = [path.name for path in root.iterdir()]
    except FileNotFoundError:
        return []
    steps = [without_prefix(name, _PREFIX) for name in names if name.startswith(_PREFIX)]
    ours = (step for step in steps if step.isdecimal() and len(step) >= _DIGITS)
    return sorted(map(int, ours), reverse=True)


def covered_bytes(ranges: Iterable[tuple[int, int]]) -> int:
    """Return how many bytes these ranges (begin, end) cover without a gap from byte 0 on."""
    known = 0
    for start, end in sorted(ranges):
        if start > known:
            break
        known = max(known, end)
    return known


def to_bytes(record: Marker | ShareRecord) -> bytes:
    """Return a record as a JSON file's content."""
    indent = 2 if isinstance(record, Marker) else None
    return (json.dumps(asdict(record), indent=indent) + "\n").encode()


def read_marker(directory: Path) -> Marker:
    """Return the marker after comparing the sizes of the files with it.

    Raises:
        DamagedCheckpoint: the marker is missing or unreadable, or a file has another size.
        OtherVersion: another version of dlctl wrote the checkpoint.
        OSError: the file system fails.
    """
    content = _read(directory / MARKER_FILE)
    try:
        raw = json.loads(content)
        _check_version(directory, int(raw["schema_version"]))
        files = {name: FileRecord(**record) for name, record in raw.pop("files").items()}
        marker = Marker(files=files, **raw)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpoint(f"{MARKER_FILE} can't be understood ({error})") from error
    for name, record in files.items():
        try:
            size_bytes = (directory / name).stat().st_size
        except _MISSING as error:
            raise DamagedCheckpoint(f"{name} is missing") from error
        if size_bytes != record.size_bytes:
            raise DamagedCheckpoint(f"{name} has {size_bytes} bytes, not {record.size_bytes}")
    return marker


_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Errors that mean damage; after any other error of the file system it may be complete."""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except _MISSING as error:
        raise DamagedCheckpoint(f"{path.name} is missing") from error


def _check_version(directory: Path, version: int) -> None:
    if version != SCHEMA_VERSION:
        raise OtherVersion(
            f"the checkpoint {directory} has the layout version {version}, and this version of "
            f"dlctl reads only version {SCHEMA_VERSION}",
            hint="resume with the dlctl that wrote it, or remove the folder to start again",
        )


def read_checked(directory: Path, marker: Marker, name: str) -> bytes:
    """Return the content of one of the small files.

    Raises:
        DamagedCheckpoint: the file is missing, or does not match its checksum.
        OSError: the file system fails.
    """
    content = _read(directory / name)
    if name not in marker.files or zlib.crc32(content) != marker.files[name].crc32:
        raise DamagedCheckpoint(f"the content of {name} does not match its checksum")
    return content


def parse_record(content: bytes) -> ShareRecord:
    """Return the record in a file's content.

    Raises:
        ValueError, KeyError, TypeError: the content is no record.
    """
    raw: dict[str, Any] = json.loads(content)
    pieces = [StoredPiece(**piece) for piece in raw.pop("pieces")]
    return ShareRecord(pieces=pieces, **raw)

"""What is known of a file's content that goes to a store: one pass over the file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PART_BYTES = 16 << 20
"""The size of the parts in which large files are written, unless there would be too many."""
MOST_PARTS = 900
"""Servers of Swift take 1,000 unless they say otherwise, and those of S3 10,000."""
LARGE_BYTES = 4 * PART_BYTES
"""From this size on a file is written in parts."""
_BLOCK_BYTES = 1 << 20


def part_bytes_of(size_bytes: int) -> int:
    """Return the size of the parts of a large file, in whole MiB."""
    return max(PART_BYTES, -(-size_bytes // (MOST_PARTS << 20)) << 20)


@dataclass(frozen=True)
class Digests:
    """A file's size and checksums."""

    size_bytes: int
    sha256: str
    part_md5s: tuple[str, ...]
    """The MD5 of each part of a large file, and of any other file as a whole; in hexadecimal."""

    @property
    def is_large(self) -> bool:
        """Whether the file is written in parts."""
        return self.size_bytes >= LARGE_BYTES

    @property
    def etags(self) -> tuple[str, ...]:
        """The etags that servers may give to this content: Swift's, S3's."""
        if not self.is_large:
            return self.part_md5s
        of_text = _md5("".join(self.part_md5s).encode())
        of_bytes = _md5(b"".join(map(bytes.fromhex, self.part_md5s)))
        return of_text, f"{of_bytes}-{len(self.part_md5s)}"


class Reading:
    """One pass over a file, which takes its checksums."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sha256 = hashlib.sha256()
        self._parts: list[Any] = []
        self._size_bytes = 0
        size_bytes = path.stat().st_size
        self.is_large = size_bytes >= LARGE_BYTES
        self.part_bytes = part_bytes_of(size_bytes)

    def __iter__(self) -> Iterator[bytes]:
        part_bytes = self.part_bytes if self.is_large else LARGE_BYTES
        with self._path.open("rb") as file:
            while content := file.read(_BLOCK_BYTES):
                if self._size_bytes % part_bytes == 0:
                    self._parts.append(hashlib.md5(usedforsecurity=False))
                self._sha256.update(content)
                self._parts[-1].update(content)
                self._size_bytes += len(content)
                yield content

    @property
    def digests(self) -> Digests:
        """What is known of the content once all of it was read."""
        parts = self._parts or [hashlib.md5(usedforsecurity=False)]
        md5s = tuple(each.hexdigest() for each in parts)
        return Digests(self._size_bytes, self._sha256.hexdigest(), md5s)


def digests_of(path: Path) -> Digests:
    """Read a file once, and return what is known of its content."""
    reading = Reading(path)
    for _ in reading:
        pass
    return reading.digests


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()

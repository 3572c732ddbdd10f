"""What is known of a file's content before it is written to a store: one pass over the file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

PART_BYTES = 16 << 20
"""The size of the parts in which large files are written."""
LARGE_BYTES = 4 * PART_BYTES
"""From this size on a file is written in parts."""
_BLOCK_BYTES = 1 << 20


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


def digests_of(path: Path) -> Digests:
    """Read a file once, and return what is known of its content."""
    sha256, parts, size_bytes = hashlib.sha256(), [], 0
    with path.open("rb") as file:
        part_bytes = PART_BYTES if path.stat().st_size >= LARGE_BYTES else LARGE_BYTES
        while content := file.read(_BLOCK_BYTES):
            if size_bytes % part_bytes == 0:
                parts.append(hashlib.md5(usedforsecurity=False))
            sha256.update(content)
            parts[-1].update(content)
            size_bytes += len(content)
    parts = parts or [hashlib.md5(usedforsecurity=False)]
    return Digests(size_bytes, sha256.hexdigest(), tuple(each.hexdigest() for each in parts))


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()

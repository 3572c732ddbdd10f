"""Read what was appended to a file, again and again, also over several attempts.

A position belongs to a file's content, not to its name: a file that begins differently than it did
is a new one, and is read from its start.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 18
"""Read at a time, so that a long file costs little memory."""
MOST_LINE_BYTES = 64 * 1024
"""A longer line is cut."""
_HEAD_BYTES = 256


@dataclass
class Position:
    """A place up to which a file was read."""

    offset: int = 0
    head_bytes: int = 0
    """How much of the file's beginning was compared."""
    head: int = 0
    """Its checksum."""
    skipping: bool = False
    """The rest of a line that is too long comes next."""

    def plain(self) -> dict[str, Any]:
        """Return the position as JSON."""
        return dict(vars(self))

    @classmethod
    def of(cls, plain: object) -> Position:
        """Return a position from JSON; the start if it is nonsense."""
        if not isinstance(plain, dict):
            return cls()
        offset, head_bytes, head = (plain.get(name) for name in ("offset", "head_bytes", "head"))
        if not (isinstance(offset, int) and isinstance(head_bytes, int) and isinstance(head, int)):
            return cls()
        return cls(max(0, offset), max(0, head_bytes), head, bool(plain.get("skipping")))


class Follower:
    """Reads one file from a position on."""

    def __init__(self, path: Path, position: Position) -> None:
        self.path = path
        self.position = position
        self.began_anew = False
        """The last `read` found another file than before."""
        self.size = 0
        """The size of the file at the last `read`, in bytes."""
        self._head = b""

    def read(self, limit: int = CHUNK_BYTES) -> bytes:
        """Return what comes next, without going on; empty at the end, or if there is no file."""
        self.began_anew = False
        try:
            # Opening first makes NFS ask the server: the size that it remembers may be old.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return b""
        try:
            return self._read(descriptor, limit)
        except OSError:  # a folder, or an error of the file system
            return b""
        finally:
            os.close(descriptor)

    def advance(self, count: int) -> None:
        """Go on by so many bytes."""
        position = self.position
        position.offset += count
        # Only what was taken: what follows may still be a hole, or half of a line.
        covered = self._head[: position.offset]
        if len(covered) > position.head_bytes:
            position.head_bytes, position.head = len(covered), zlib.crc32(covered)

    def _read(self, descriptor: int, limit: int) -> bytes:
        position = self.position
        self.size = size = os.fstat(descriptor).st_size
        if size == position.offset:
            return b""
        head = os.pread(descriptor, _HEAD_BYTES, 0)
        known = head[: position.head_bytes]
        if size < position.offset or zlib.crc32(known) != position.head:
            self.began_anew = bool(position.offset)
            self.position = position = Position()
        self._head = head
        return os.pread(descriptor, limit, position.offset)


class LineFollower(Follower):
    """Reads whole lines. A line ends with a newline, a carriage return or both."""

    def lines(self, last: bool = False) -> str | None:
        """Return the next lines, each with a newline; None if there are none for now.

        Args:
            last: nobody writes the file any more, so the last line needs no end.
        """
        data = self.read()
        while self.position.skipping and data:
            data = self._skip(data) or self.read()
        if not data:
            return None
        end = max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1
        if end == 0 or (last and len(data) < CHUNK_BYTES):
            if not last and len(data) < MOST_LINE_BYTES:
                return None
            end = len(data)
            more = not last or len(data) >= CHUNK_BYTES
            self.position.skipping = more and data[-1:] not in (b"\r", b"\n")
        self.advance(end)
        return _normal(data[:end])

    def _skip(self, data: bytes) -> bytes:
        ends = [i for i in (data.find(b"\n"), data.find(b"\r")) if i >= 0]
        rest = min(ends) + 1 if ends else len(data)
        self.advance(rest)
        self.position.skipping = not ends
        return data[rest:]


def _normal(data: bytes) -> str:
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    text = data.decode("utf-8", "replace")
    if not text.endswith("\n"):
        text += "\n"
    if len(text) <= MOST_LINE_BYTES:
        return text
    lines = text.split("\n")
    if max(map(len, lines)) > MOST_LINE_BYTES:
        return "\n".join(line[:MOST_LINE_BYTES] for line in lines)
    return text

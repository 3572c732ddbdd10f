"""Records in an append-only file: a length, a checksum, a kind and the payload."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

_HEADER = struct.Struct("<IIB")
"""Length of the payload, CRC-32 of kind and payload, kind."""
LONGEST = 256 << 20


@dataclass(frozen=True)
class Record:
    """One record."""

    kind: int
    payload: bytes


def encode(kind: int, payload: bytes) -> bytes:
    """Return a record as it is stored."""
    checksum = zlib.crc32(payload, zlib.crc32(bytes([kind])))
    return _HEADER.pack(len(payload), checksum, kind) + payload


def read_records(path: Path) -> tuple[list[Record], int]:
    """Return the records of a file, and how many bytes they take.

    What follows the last whole record is a torn tail: it was never acknowledged, because a writer
    acknowledges nothing before everything up to it is on the disk.
    """
    data = memoryview(path.read_bytes())
    found: list[Record] = []
    at = 0
    while at + _HEADER.size <= len(data):
        length, checksum, kind = _HEADER.unpack_from(data, at)
        end = at + _HEADER.size + length
        if length > LONGEST or end > len(data):
            break
        payload = data[at + _HEADER.size : end]
        if zlib.crc32(payload, zlib.crc32(bytes([kind]))) != checksum:
            break
        found.append(Record(kind, bytes(payload)))
        at = end
    return found, at

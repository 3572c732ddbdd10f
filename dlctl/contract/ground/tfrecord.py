"""TensorFlow's records, of which event files consist: length, checksum, data, checksum."""

from __future__ import annotations

import struct
from collections.abc import Iterator

HEAD_BYTES, TAIL_BYTES = 12, 4
_POLYNOMIAL = 0x82F63B78


class BrokenFile(ValueError):
    """The file holds something else than records from here on."""


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _table()


def masked_crc(data: bytes) -> int:
    """Return TensorFlow's checksum of a few bytes: CRC-32C, rotated and shifted."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(data: bytes) -> bytes:
    """Return the record of some data."""
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc(head)) + data + struct.pack("<I", masked_crc(data))


def record_length(head: bytes) -> int:
    """Return the length of the data behind the first `HEAD_BYTES` of a record.

    Only the length is verified: the checksum of the data would take most of the time.

    Raises:
        BrokenFile: there is no record.
    """
    length, crc = struct.unpack("<QI", head)
    if masked_crc(head[:8]) != crc:
        raise BrokenFile
    return int(length)


def records(data: bytes) -> Iterator[tuple[memoryview | None, int]]:
    """Yield each whole record's data with the offset behind it.

    A record that is cut ends it. So does a record that is longer than `data`: then None is
    yielded with the offset behind it, so that a caller can leave it out.
    """
    view, at = memoryview(data), 0
    while at + HEAD_BYTES <= len(data):
        length = record_length(data[at : at + HEAD_BYTES])
        end = at + HEAD_BYTES + length + TAIL_BYTES
        if end > len(data):
            if at == 0:
                yield None, end
            return
        yield view[at + HEAD_BYTES : end - TAIL_BYTES], end
        at = end

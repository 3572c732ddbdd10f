"""Write scalars as TensorBoard's event files, without TensorBoard.

An event file is a sequence of TFRecords, each a length (uint64) and a protobuf `Event`, both with a
masked CRC-32C. The fields are those of TensorFlow's `event.proto` and `summary.proto`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from pathlib import Path

_POLYNOMIAL = 0x82F63B78
_VERSION = b"\x1a\x0dbrain.Event:2"


def _table() -> list[int]:
    found = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        found.append(value)
    return found


_CRC = _table()


def masked_crc(content: bytes) -> int:
    """Return the CRC-32C of a content, masked as TFRecords do."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = (crc >> 8) ^ _CRC[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(event: bytes) -> bytes:
    """Return the TFRecord of an event."""
    length = struct.pack("<Q", len(event))
    return b"".join([
        length, struct.pack("<I", masked_crc(length)), event, struct.pack("<I", masked_crc(event)),
    ])  # fmt: skip


def scalar_event(time: float, step: int, tag: str, value: float) -> bytes:
    """Return an event that holds one value; time in Unix seconds."""
    name = tag.encode()
    scalar = b"\x0a" + _varint(len(name)) + name + b"\x15" + struct.pack("<f", _single(value))
    summary = b"\x0a" + _varint(len(scalar)) + scalar
    head = b"\x09" + struct.pack("<d", time) + b"\x10" + _varint(max(0, step))
    return head + b"\x2a" + _varint(len(summary)) + summary


def _single(value: float) -> float:
    """Return a value that a float of 32 bits can hold."""
    return value if abs(value) < 3.4e38 or value != value else math.copysign(math.inf, value)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def write_events(
    path: Path, began_at: float, points: Iterable[tuple[float, int, str, float]]
) -> None:
    """Write a file of (time, step, tag, value).

    Args:
        began_at: Unix seconds, of the file's first record.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(record(b"\x09" + struct.pack("<d", began_at) + _VERSION))
        for time, step, tag, value in points:
            file.write(record(scalar_event(time, step, tag, value)))

"""Write TensorBoard's event files, in few lines and without TensorBoard."""

from __future__ import annotations

import struct

TABLE = []
for _byte in range(256):
    for _ in range(8):
        _byte = _byte >> 1 ^ (0x82F63B78 if _byte & 1 else 0)
    TABLE.append(_byte)


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(data):
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc(head)) + data + struct.pack("<I", masked_crc(data))


def varint(value):
    value &= (1 << 64) - 1
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def field(number, content):
    """Return a field: a number, a double, or bytes."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    if isinstance(content, float):
        return varint(number << 3 | 1) + struct.pack("<d", content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def scalar(tag, value):
    return field(1, tag.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value)


def histogram(tag, numbers):
    parts = (min(numbers), max(numbers), len(numbers), sum(numbers), sum(n * n for n in numbers))
    content = b"".join(field(i, float(part)) for i, part in enumerate(parts, 1))
    return field(1, tag.encode()) + field(5, content)


def tensor(tag, numbers, shape=(), plugin="scalars", dtype=2):
    """Return a value of TensorFlow 2; the numbers are doubles."""
    dims = b"".join(field(2, field(1, size)) for size in shape)
    content = struct.pack(f"<{len(numbers)}d", *numbers)
    inner = field(1, dtype) + field(2, dims) + field(4, content)
    metadata = field(1, field(1, plugin.encode()))
    return field(1, tag.encode()) + field(8, inner) + field(9, metadata)


def event(step, *values, wall_time=1700000000.0):
    """Return a whole record of an event with these values."""
    summary = b"".join(field(1, value) for value in values)
    return record(field(1, wall_time) + field(2, step) + field(5, summary))


def beginning(wall_time=1700000000.0):
    return record(field(1, wall_time) + field(3, b"brain.Event:2"))

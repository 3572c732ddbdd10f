"""Protobuf's wire format and TFRecord's, as far as TensorBoard and Caffe's weights need them."""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_LENGTHS = {FIXED64: 8, FIXED32: 4}
Value = int | memoryview


class Malformed(ValueError):
    """The bytes are no message."""


def fields(data: memoryview) -> Iterator[tuple[int, int, Value]]:
    """Yield number, wire type and value of each field of a message.

    A varint is a number, everything else the bytes.

    Raises:
        Malformed: the message is cut or broken.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        value: Value
        if wire == VARINT:
            value, at = _varint(data, at)
        else:
            length, at = _varint(data, at) if wire == BYTES else (_LENGTHS.get(wire, -1), at)
            if length < 0 or at + length > len(data):
                raise Malformed(f"field {number} at byte {at} is cut off, or of an unknown kind")
            value, at = data[at : at + length], at + length
        yield number, wire, value


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Malformed(f"a number is cut off at byte {at}")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def signed(value: int) -> int:
    """Return a varint of the type int64 or int32."""
    return value - (1 << 64) if value >= 1 << 63 else value


def double(value: Value) -> float:
    """Return the value of a field of the type double."""
    return float(_unpack("<d", value, 8))


def single(value: Value) -> float:
    """Return the value of a field of the type float."""
    return float(_unpack("<f", value, 4))


def _unpack(form: str, value: Value, length: int) -> float:
    if isinstance(value, int) or len(value) != length:
        raise Malformed("a number of another length was expected")
    return float(struct.unpack(form, value)[0])


def numbers(value: Value, form: str) -> list[float]:
    """Return the numbers of a repeated field, packed or not.

    Args:
        form: the letter of `struct` for `float` or `double`, or `v` for varints.
    """
    if form == "v":
        return [float(signed(number)) for number in varints(value)]
    if isinstance(value, int):
        raise Malformed("a list of numbers was expected")
    size = struct.calcsize(form)
    if len(value) % size:
        raise Malformed("a list of numbers is cut")
    return [float(n) for n in struct.unpack(f"<{len(value) // size}{form}", value)]


def varints(value: Value) -> list[int]:
    """Return the whole numbers of a repeated field, packed or not."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(number)
    return found


def text(value: Value) -> str:
    """Return the value of a field of the type string."""
    if isinstance(value, int):
        raise Malformed("a text was expected")
    return bytes(value).decode("utf-8", "replace")


def message(value: Value) -> memoryview:
    """Return the bytes of a field that is a message."""
    if isinstance(value, int):
        raise Malformed("a message was expected")
    return value


def varint(number: int) -> bytes:
    """Return a number that is not negative as a varint."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def block(number: int, content: bytes) -> bytes:
    """Return a field that holds bytes: a text, a nested message or packed numbers."""
    return varint(number << 3 | BYTES) + varint(len(content)) + content


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

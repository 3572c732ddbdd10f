"""Protobuf's wire format, as far as weights need it: varints, packed numbers, nested messages."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Value = int | memoryview


class Damaged(ValueError):
    """The bytes are no protobuf message."""


def fields(data: memoryview) -> Iterator[tuple[int, int, Value]]:
    """Yield each field of a message: its number, its wire type and its value.

    Raises:
        Damaged: the bytes are no message.
    """
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value: Value
            value, at = _varint(data, at)
        else:
            size = {FIXED64: 8, FIXED32: 4}.get(kind, -1)
            if kind == BYTES:
                size, at = _varint(data, at)
            if size < 0 or at + size > len(data):
                raise Damaged(f"field {number} at byte {at} is cut off, or of an unknown kind")
            value, at = data[at : at + size], at + size
        yield number, kind, value


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise Damaged(f"a number is cut off at byte {at}")


def varints(kind: int, value: Value) -> list[int]:
    """Return the whole numbers of a repeated field, packed or not."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while kind == BYTES and at < len(value):
        number, at = _varint(value, at)
        found.append(number)
    return found


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

"""Just enough of the protobuf wire format to read TensorBoard's events."""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Malformed(ValueError):
    """The bytes are no message."""


def fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Yield number, wire type and value of each field of a message.

    A varint is a number, everything else the bytes.

    Raises:
        Malformed: the message is cut or broken.
    """
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == FIXED64:
            length = 8
        elif wire == FIXED32:
            length = 4
        elif wire == BYTES:
            length, at = _varint(data, at)
        else:
            raise Malformed(f"wire type {wire}")
        if at + length > end:
            raise Malformed("the message is cut")
        yield number, wire, data[at : at + length]
        at += length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Malformed("a number is cut")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def signed(value: int) -> int:
    """Return a varint of the type int64 or int32."""
    return value - (1 << 64) if value >= 1 << 63 else value


def double(value: int | memoryview) -> float:
    """Return the value of a field of the type double."""
    return float(_unpack("<d", value, 8))


def single(value: int | memoryview) -> float:
    """Return the value of a field of the type float."""
    return float(_unpack("<f", value, 4))


def _unpack(form: str, value: int | memoryview, length: int) -> float:
    if isinstance(value, int) or len(value) != length:
        raise Malformed("a number of another length was expected")
    return float(struct.unpack(form, value)[0])


def numbers(value: int | memoryview, form: str) -> list[float]:
    """Return the numbers of a repeated field, packed or not.

    Args:
        form: the letter of `struct` for `float` or `double`, or `v` for varints.
    """
    if form == "v":
        if isinstance(value, int):
            return [float(signed(value))]
        found, at = [], 0
        while at < len(value):
            number, at = _varint(value, at)
            found.append(float(signed(number)))
        return found
    if isinstance(value, int):
        raise Malformed("a list of numbers was expected")
    size = struct.calcsize(form)
    if len(value) % size:
        raise Malformed("a list of numbers is cut")
    return [float(n) for n in struct.unpack(f"<{len(value) // size}{form}", value)]


def text(value: int | memoryview) -> str:
    """Return the value of a field of the type string."""
    if isinstance(value, int):
        raise Malformed("a text was expected")
    return bytes(value).decode("utf-8", "replace")


def message(value: int | memoryview) -> memoryview:
    """Return the bytes of a field that is a message."""
    if isinstance(value, int):
        raise Malformed("a message was expected")
    return value

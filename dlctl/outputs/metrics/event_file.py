"""Write scalars as TensorBoard's event files, without TensorBoard.

An event file is a sequence of TFRecords, each a protobuf `Event`. The fields are those of
TensorFlow's `event.proto` and `summary.proto`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from pathlib import Path

from dlctl.contract.ground.protobuf import block, varint
from dlctl.contract.ground.tfrecord import record

_VERSION = b"\x1a\x0dbrain.Event:2"


def scalar_event(time: float, step: int, tag: str, value: float) -> bytes:
    """Return an event that holds one value; time in Unix seconds."""
    scalar = block(1, tag.encode()) + b"\x15" + struct.pack("<f", _single(value))
    head = b"\x09" + struct.pack("<d", time) + b"\x10" + varint(max(0, step))
    return head + block(5, block(1, scalar))


def _single(value: float) -> float:
    """Return a value that a float of 32 bits can hold."""
    return value if abs(value) < 3.4e38 or value != value else math.copysign(math.inf, value)


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

"""The process in which tasks run, one after another; it never loads gRPC.

A worker starts it by exec, and ends its whole process group if a task goes wrong. They send each
other a JSON object and bytes over a socket pair. Imports `search.tasks` and the standard library,
and whatever the tasks import.
"""

from __future__ import annotations

import json
import struct
from typing import Any

_LENGTHS = struct.Struct("<II")
LONGEST_VALUE = 32 << 20
"""A task's value may have this many bytes."""
LENGTHS_BYTES = _LENGTHS.size


def pack(head: dict[str, Any], body: bytes = b"") -> bytes:
    """Return a frame."""
    text = json.dumps(head).encode()
    return _LENGTHS.pack(len(text), len(body)) + text + body


def unpack_lengths(data: bytes) -> tuple[int, int]:
    """Return the lengths of a frame's two parts."""
    text, body = _LENGTHS.unpack(data)
    return text, body

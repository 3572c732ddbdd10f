"""What a broker's log holds: one kind of record for each kind of change, and how it is packed."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from search.protocol import messages as m

TASKS = ord("T")
"""A SubmitRequest: a model's tasks."""
RESULTS = ord("R")
"""A name, and a ResultsReply: results of that model. Its cursor is the number of the last one."""
CURSOR = ord("C")
"""A ResultsRequest: the model has the results up to its cursor."""
WITHDRAWN = ord("W")
"""A CancelRequest."""
AGAIN = ord("A")
"""A SubmitRequest: the same tasks as before, with deaths and checkpoints as they are now."""
HELPED = ord("H")
"""A name, and a ResultsReply: results that belong to that broker."""
GIVEN_BACK = ord("G")
"""A name, and a ReturnReply: that broker has these results."""
COUNTS = ord("N")
"""A StatusReply: what was counted so far."""

_COUNTED = ("accepted", "failed", "dropped", "lent")
_LENGTH = struct.Struct("<H")


def named(name: str, message: bytes) -> bytes:
    """Pack a name and a message."""
    encoded = name.encode()
    return _LENGTH.pack(len(encoded)) + encoded + message


def split(payload: bytes) -> tuple[str, bytes]:
    """Return the name and the message of what `named` packed."""
    (length,) = _LENGTH.unpack_from(payload)
    end = _LENGTH.size + length
    return payload[_LENGTH.size : end].decode(), payload[end:]


def pack_results(name: str, accepted: Iterable[m.Accepted], last: int = 0) -> bytes:
    """Pack results of a model, or of another broker."""
    return named(name, m.ResultsReply(results=accepted, cursor=last).SerializeToString())


def pack_again(tasks: Iterable[m.Task]) -> bytes:
    """Pack what has changed about tasks that wait again."""
    changed = [m.Task(id=t.id, deaths=t.deaths, checkpoint=t.checkpoint) for t in tasks]
    return m.SubmitRequest(tasks=changed).SerializeToString()


def pack_counts(counts: Mapping[str, int]) -> bytes:
    """Pack what was counted."""
    told = m.StatusReply()
    for name in _COUNTED:
        setattr(told, name, counts.get(name, 0))
    return told.SerializeToString()


def unpack_counts(payload: bytes) -> dict[str, int]:
    """Return what `pack_counts` packed."""
    told = m.StatusReply.FromString(payload)
    return {name: getattr(told, name) for name in _COUNTED}

"""How payloads and values are written: JSON, or MessagePack, which has bytes too. Never as code."""

from __future__ import annotations

import contextlib
import json
from typing import Any

MESSAGE_PACK = "msgpack"
_NAMES = {"": "JSON", "json": "JSON", MESSAGE_PACK: "MessagePack"}


class TaskError(Exception):
    """A task can't run, or left no value; the text says why, without a traceback."""


def decode(encoding: str, payload: bytes) -> Any:
    """Return what a payload holds.

    Raises:
        TaskError: The encoding is not known here, or the payload is not written in it.
    """
    if encoding not in _NAMES:
        raise TaskError(f"this worker does not understand payloads in {encoding!r}")
    try:
        return _message_pack().unpackb(payload) if encoding == MESSAGE_PACK else json.loads(payload)
    except (ValueError, RecursionError) as error:  # all of msgpack's are ValueErrors, too
        raise TaskError(f"the payload can't be read as {_NAMES[encoding]}: {error}") from error


def encode(encoding: str, value: Any) -> bytes:
    """Return a task's value, written as its payload was.

    Raises:
        TaskError: It can't be written so, or holds NaN or infinity.
    """
    with contextlib.suppress(AttributeError):
        value = value.item()  # a NumPy scalar, or a tensor of one element
    packs = encoding == MESSAGE_PACK
    try:
        text = json.dumps(value, allow_nan=False, default=_nothing_if_bytes if packs else None)
        return bytes(_message_pack().packb(value)) if packs else text.encode()
    except (OverflowError, TypeError, RecursionError) as error:
        raise TaskError(f"the value can't be written as {_NAMES[encoding]}: {error}") from error
    except ValueError as error:
        raise TaskError("the value holds NaN or infinity, which are no results") from error


def _nothing_if_bytes(value: Any) -> None:
    if not isinstance(value, bytes):
        raise TypeError(f"Object of type {type(value).__name__} is not serializable")


def _message_pack() -> Any:
    try:
        import msgpack
    except ImportError:
        raise TaskError(
            "this worker's Python has no msgpack, in which the payload is written"
        ) from None
    return msgpack

"""Runs one task, by its type: `python` a class, `exec` a program.

Payloads and values are JSON, or MessagePack, which has bytes too; never code.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from search.tasks import BaseTask, Order, Reporter

_LAST_LINE_BYTES = 33 << 20


def run_task(
    head: dict[str, Any],
    payload: bytes,
    report: Reporter,
    on_order: list[Callable[[], object]],
    order: Callable[[], Order],
) -> bytes:
    """Run a task; return its value, in the encoding of its payload.

    Args:
        head: `type`, `encoding`, and `checkpoint`, the task's own folder.
        on_order: Gets a function that is called when an order comes.

    Raises:
        TaskError: The task is not understood, or its value is none.
    """
    what = decode(head["encoding"], payload)
    try:
        arguments = dict(what.get("arguments", {}))
    except (ValueError, AttributeError, TypeError) as error:
        raise TaskError(f"the payload is no object with arguments: {error}") from error
    folder = Path(head["checkpoint"])
    if head["type"] == "python":
        value = _run_python(str(what.get("target", "")), arguments, folder, report)
    elif head["type"] == "exec":
        value = _run_program(str(what.get("command", "")), arguments, folder, on_order, order)
    else:
        raise TaskError(f"this worker does not know tasks of the type {head['type']!r}")
    return encode(head["encoding"], value)


def _run_python(target: str, arguments: dict[str, Any], folder: Path, report: Reporter) -> Any:
    module, _, name = target.partition(":")
    if not module or not name:
        raise TaskError(f"the target {target!r} is not of the form module:Class")
    found = getattr(importlib.import_module(module), name)
    if not (isinstance(found, type) and issubclass(found, BaseTask)):
        raise TaskError(f"{target} is not a subclass of search.tasks.BaseTask")
    task = found(**arguments)
    task.checkpoint = folder
    task._reporter = report  # noqa: SLF001
    return task.run()


def _run_program(
    command: str,
    arguments: dict[str, Any],
    folder: Path,
    on_order: list[Callable[[], object]],
    order: Callable[[], Order],
) -> Any:
    """Run a command. Its output goes to the log; the last line is the value."""
    if not command:
        raise TaskError("the payload has no command")
    try:
        text = json.dumps(arguments)
    except TypeError as error:
        raise TaskError(f"a program reads its arguments as JSON: {error}") from error
    program = subprocess.Popen(  # noqa: S602  the user's own command
        command,
        shell=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"SEARCH_CHECKPOINT": str(folder)},
    )
    on_order.append(lambda: program.send_signal(signal.SIGTERM))
    assert program.stdin is not None and program.stdout is not None

    def feed(stdin: Any = program.stdin) -> None:
        with contextlib.suppress(OSError), stdin:
            stdin.write(text.encode() + b"\n")

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    tail = bytearray()
    while part := os.read(program.stdout.fileno(), 1 << 16):
        sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        tail += part
        if len(tail) > 2 * _LAST_LINE_BYTES:
            del tail[:-_LAST_LINE_BYTES]
    feeder.join()
    code = program.wait()
    if code and order() is Order.CONTINUE:
        raise TaskError(f"the program ended with exit code {code}")
    line = bytes(tail).strip().rpartition(b"\n")[2]
    try:
        return json.loads(line)
    except ValueError as error:
        if order() is not Order.CONTINUE:
            return None
        shown = line[:80].decode(errors="replace")
        raise TaskError(f"the program's last line is not JSON: {shown!r}") from error


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

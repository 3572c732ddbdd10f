"""Feeds a script at a site with bytes, and explains why the site could not store them."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Iterable

from dlctl.contract.ground.safe_text import lines_of
from dlctl.errors import TransferError
from dlctl.transport.base import Completed, Transport

NO_FOLDER, NO_UNPACK, NO_MATCH, NO_RENAME, EXISTS = 71, 72, 73, 74, 75
"""Exit codes of scripts that store what they are sent, one for each step."""
_BYTES_PER_S = 20e6
"""What the slowest shared file system hashes in a second."""


def feed(
    transport: Transport, script: str, chunks: Iterable[bytes], size_bytes: int,
    on_sent: Callable[[int], None], idle_timeout_s: float,
) -> Completed:  # fmt: skip
    """Start a script, write to its standard input, and return how it ended.

    Args:
        transport: To the site.
        script: Reads all that it gets, unless it fails.
        chunks: What it gets.
        size_bytes: How much the script hashes once it has got all.
        on_sent: Called with the size of each chunk.
        idle_timeout_s: The longest time without progress, and the least time for hashing.

    Raises:
        TransportError
    """
    hashing_s = idle_timeout_s + size_bytes / _BYTES_PER_S
    rest = iter(chunks)
    first, second = next(rest, b""), next(rest, None)
    if second is None:  # one round trip less
        end = transport.run(script, stdin=first, timeout_s=hashing_s)
        on_sent(len(first))
        return end
    process = transport.start(script, idle_timeout_s=idle_timeout_s)
    try:
        for chunk in itertools.chain((first, second), rest):
            process.stdin.write(chunk)
            on_sent(len(chunk))
    except BrokenPipeError:
        pass  # the script ended early: its exit code says why
    except BaseException:
        process.kill()
        raise
    return process.wait(hashing_s)


def explained(name: str, root: str, end: Completed) -> TransferError:
    """Return the error of a script that could not store what it was sent."""
    said = end.error_text
    last = last_telling_line(said) or f"exit code {end.exit_code}"
    hint = f"Check the space and the permissions there: df -h {shlex.quote(root)}"
    if "No space left" in said:
        what = "the disk is full"
    elif "quota" in said.lower():
        what, hint = "your quota is used up", f"Free space there: quota -s; du -sh {root}"
    elif "Permission denied" in said or "Read-only" in said:
        what, hint = (
            "you have no permission to write there",
            "Choose another root folder in the site's file.",
        )
    elif end.exit_code == NO_MATCH:
        what, hint = (
            "what arrived is not what was sent",
            "Try again; if it happens again, check the disk there.",
        )
    elif end.exit_code == EXISTS:
        what, hint = "the target exists already", "Choose another, or remove it."
    else:
        what = "the upload failed"
    return TransferError(f"{name}: {what} ({root}): {last}", hint=hint)


def last_telling_line(stderr: str) -> str:
    """Return the last informative line: tar ends with lines that say nothing."""
    lines = [line.strip() for line in lines_of(stderr) if line.strip()]
    told = [
        line
        for line in lines
        if "Exiting with failure" not in line and "extended header keyword" not in line
    ]
    return (told or lines or [""])[-1]

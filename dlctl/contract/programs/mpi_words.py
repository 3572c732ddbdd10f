"""What an MPI library prints into a learner's log when it ends processes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

LOST_OTHERS = 14
"""The exit code with which Open MPI ends a process that has lost another, without a word."""
_ABORT = re.compile(
    r"MPI_ABORT was invoked on rank (?P<open>\d+) in|MPI_Abort\(.*\) - process (?P<mpich>\d+)"
)
_CODE = re.compile(r"(?:Errorcode:|with errorcode|MPI_Abort\(\w+,) *(\d+)")
_SIGNAL = re.compile(r"^\[[\w.-]+:\d+\] Signal: .*\((\d+)\)")
_FRAME = re.compile(r"^\[[\w.-]+:\d+\] \[ *\d+\] .*\[0x[0-9a-f]+\]$")


def without_frames(lines: Iterable[str]) -> list[str]:
    """Return lines without the addresses of Open MPI's backtraces, which fill what is kept."""
    return [line for line in lines if not _FRAME.match(line)]


def aborted_ranks(lines: Iterable[str]) -> list[int]:
    """Return the ranks that called MPI_Abort, in the order of the lines."""
    found = filter(None, map(_ABORT.search, lines))
    return [int(match["open"] or match["mpich"]) for match in found]


def abort_code(lines: Iterable[str]) -> int:
    """Return the error code of the first call of MPI_Abort; 1 if none is named."""
    return next((int(match[1]) for match in map(_CODE.search, lines) if match), 1)


def before_abort(lines: list[str]) -> list[str]:
    """Return the lines before MPI's message about MPI_Abort."""
    at = next((n for n, line in enumerate(lines) if _ABORT.search(line)), len(lines))
    return lines[: at - 1 if at and at < len(lines) and not lines[at - 1].strip("-") else at]


def printed_signal(lines: Iterable[str]) -> int | None:
    """Return the signal of a crash that Open MPI's own handler has printed, or None."""
    found = [int(match[1]) for match in map(_SIGNAL.match, lines) if match]
    return found[-1] if found else None

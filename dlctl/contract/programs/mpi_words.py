"""Read in a learner's log how an MPI library ended processes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

LOST_OTHERS = 14
"""The exit code with which Open MPI ends a process that has lost another, without a word."""
PRINT_STACK = {"OMPI_MCA_mpi_abort_print_stack": "1"}
"""Lets Open MPI print into the log of a process that it ends where that came from."""
ABORTED = "Open MPI: the program called MPI_Abort"
"""Stands for the backtrace of such a call."""
_ABORT = re.compile(
    r"MPI_ABORT was invoked on rank (\d+) in communicator MPI_COMM_WORLD$"
    r"|MPI_ABORT was invoked on .*\n +Proc: \[\[\d+,\d+\],(\d+)\]"
    r"|Abort\(-?\d+\) on node (\d+) \(rank \d+ in comm \d+\): application called MPI_Abort"
    r"|application called MPI_Abort\(.*\) - process (\d+)",
    re.MULTILINE,
)
"""The rank in MPI_COMM_WORLD, which Open MPI 4 does not name where a part of it aborts."""
_MESSAGE = re.compile("MPI_ABORT was invoked on|application called MPI_Abort")
_FATAL = re.compile(r"Abort\(-?\d+\) on node \d+ \(.*\): (?P<error>Fatal error in .*)")
_CODE = re.compile(r"(?:Errorcode:|with errorcode|MPI_Abort\(\w+,) *(\d+)")
_SIGNAL = re.compile(
    r"^\[[\w.-]+:\d+\] Signal: .*\((\d+)\)|^\[[\w.-]+:\d+:\d+:\d+\] Caught signal (\d+) \("
)
"""Open MPI's handler prints it, or that of UCX, which MPICH and Open MPI use."""
_FRAME = re.compile(
    r"^\[[\w.-]+:\d+\] \[ *\d+\] .*\[0x[0-9a-f]+\]$|^ *\d+ +\S+\(.*\+0x[0-9a-f]+\) \[0x[0-9a-f]+\]$"
    r"|^=+ backtrace \(tid: *\d+\) =+$|^={33}$"
)


def without_frames(lines: Iterable[str]) -> list[str]:
    """Return lines without the addresses of MPI's backtraces, which fill what is kept.

    Open MPI ends a process itself, in its handler of errors, if that has lost another.
    """
    found, before = [], ""
    for line in lines:
        is_frame = _FRAME.match(line) is not None
        if "(ompi_mpi_abort+" in before and is_frame and "errors_are_fatal" not in line:
            found.append(ABORTED)
        if not is_frame:
            found.append(line)
        before = line
    return found


def aborted_ranks(lines: Iterable[str]) -> list[int]:
    """Return the ranks that called MPI_Abort, in the order of the lines."""
    found = _ABORT.finditer("\n".join(lines))
    return [int(next(filter(None, match.groups()))) for match in found]


def called_abort(lines: list[str], rank: int) -> bool:
    """Return whether a learner's log says that it called MPI_Abort itself."""
    return ABORTED in lines or rank in aborted_ranks(lines)


def fatal_error(lines: Iterable[str]) -> str:
    """Return the error because of which MPICH has ended this process, or ""."""
    return next((match["error"] for match in map(_FATAL.search, lines) if match), "")


def abort_code(lines: Iterable[str]) -> int | None:
    """Return the error code of the first call of MPI_Abort, or None if it is not named."""
    return next((int(match[1]) for match in map(_CODE.search, lines) if match), None)


def before_abort(lines: list[str]) -> list[str]:
    """Return the lines before MPI's message about MPI_Abort."""
    is_message = (line == ABORTED or _MESSAGE.search(line) for line in lines)
    at = next((n for n, found in enumerate(is_message) if found), len(lines))
    return lines[: at - 1 if at and at < len(lines) and not lines[at - 1].strip("-") else at]


def printed_signal(lines: Iterable[str]) -> int | None:
    """Return the signal of a crash that MPI's own handler has printed, or None."""
    found = [int(match[1] or match[2]) for match in map(_SIGNAL.match, lines) if match]
    return found[-1] if found else None

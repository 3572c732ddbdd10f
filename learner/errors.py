"""The learners' error for users, and the printing of any error."""

from __future__ import annotations

import socket
import sys
import traceback

from dlctl.contract.ground.hinted import HintedError

EXIT_FAILED = 1
EXIT_NO_RESTART = 3
"""Exit code of a server that would fail again in the same way after a restart."""


class UserFault(HintedError):
    """Something in the user's file, data or checkpoint is wrong; shown without a traceback."""


class Mistake(str):
    """A problem of the preflight that lies in what the user sent, not in the node or the site."""


class SiteFault(UserFault):
    """Something at the site is wrong, not in what the user sent: it may work elsewhere or later."""


def explain(error: BaseException, rank: int) -> int:
    """Print to standard error why this learner ends; return its exit code.

    Each line begins with rank and host. A UserFault is printed without a traceback, any other
    error with the whole one.
    """
    sys.stdout.flush()
    text = "".join(f"{place(rank)} {line}\n" for line in _lines(error))
    print(text, end="", file=sys.stderr, flush=True)
    code = error.code if isinstance(error, SystemExit) else EXIT_FAILED
    # A program that exits by itself, whatever its exit code, has not trained to the end.
    return code if isinstance(code, int) and code not in (0, EXIT_HALTED) else EXIT_FAILED


def place(rank: int) -> str:
    """Return the prefix of a learner's lines: its rank and host."""
    return f"[rank {rank} on {socket.gethostname()}]"


def _lines(error: BaseException) -> list[str]:
    if isinstance(error, UserFault):
        return str(error).splitlines()
    if isinstance(error, SystemExit):
        if isinstance(error.code, str):
            return error.code.splitlines()
        return [f"the user's program called exit({error.code})"]
    return "".join(traceback.format_exception(type(error), error, error.__traceback__)).splitlines()


EXIT_HALTED = 85
"""Exit code of a learner that saved its state and stopped because it was asked to."""

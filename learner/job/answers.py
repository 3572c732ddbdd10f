"""One JSON answer of a node-side program to the login side, whatever else is printed meanwhile.

`dlctl.lifecycle.remote_module` runs `python -m learner.<module>` and names a random mark in the
environment; the answer is one line that begins with it. Run by hand, without a mark, the answer is
plain JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from learner.errors import UserFault

EXIT_FAILED = 1
MARK_VARIABLE = "DLCTL_ANSWER_MARK"
"""Set by templates/sites/node_side.sh: the first word of the line that is the answer."""


def run(main: Callable[[list[str]], Any]) -> int:
    """Run a program and print what it returns as its answer; return the exit code.

    Meanwhile standard output is standard error, for C libraries and child processes too. A
    UserFault is told without a traceback.
    """
    mark = os.environ.pop(MARK_VARIABLE, "")  # the user's code must not see it
    with _answers() as out:
        try:
            value = main(sys.argv[1:])
        except Exception as error:
            fault = _explained(error)
            if mark:
                _tell(out, mark, {"fault": fault.message, "hint": fault.hint})
            else:
                print(f"error: {fault}", file=sys.stderr, flush=True)
            return EXIT_FAILED
        if mark:
            _tell(out, mark, {"value": value})
        else:
            out.write(json.dumps(value, indent=2) + "\n")
            out.flush()
    return 0


def _explained(error: Exception) -> UserFault:
    if isinstance(error, UserFault):
        return error
    traceback.print_exception(error)
    told = (str(error).splitlines() or [""])[0][:300]
    return UserFault(f"{type(error).__name__}: {told}", hint="the traceback stands above")


def _tell(out: TextIO, mark: str, frame: dict[str, Any]) -> None:
    sys.stderr.flush()
    out.write(f"\n{mark} {json.dumps(frame)}\n")  # ASCII, one line
    out.flush()


@contextlib.contextmanager
def _answers() -> Iterator[TextIO]:
    """Yield the real standard output, while 1 is the same file as 2."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with open(kept, "w", encoding="utf-8", closefd=False) as out:
            yield out
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)

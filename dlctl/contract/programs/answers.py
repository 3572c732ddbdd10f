"""Send one JSON answer from a node-side program to the login side, whatever else is printed.

`dlctl.lifecycle.remote_module` runs a module of `learner` or `search`, and puts a random mark into
the environment; the answer is one line that begins with the mark. Without a mark, as when run by
hand, the answer is plain JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from dlctl.contract.ground.hinted import HintedError

EXIT_FAILED = 1
MARK_VARIABLE = "DLCTL_ANSWER_MARK"
"""Set by templates/sites/node_side.sh: the first word of the line that is the answer."""


def run(main: Callable[[list[str]], Any]) -> int:
    """Run a program and print its return value as the answer; return the exit code.

    While `main` runs, standard output goes to standard error, for C libraries and child processes
    too. A HintedError is reported without a traceback.
    """
    mark = os.environ.pop(MARK_VARIABLE, "")  # the user's code must not see it
    with _answers() as out:
        try:
            value = main(sys.argv[1:])
        except Exception as error:
            fault = _explained(error)
            if mark:
                _send(out, mark, {"fault": fault.message, "hint": fault.hint})
            else:
                print(f"error: {fault}", file=sys.stderr, flush=True)
            return EXIT_FAILED
        if mark:
            _send(out, mark, {"value": value})
        else:
            out.write(json.dumps(value, indent=2) + "\n")
            out.flush()
    return 0


def _explained(error: Exception) -> HintedError:
    if isinstance(error, HintedError):
        return error
    traceback.print_exception(type(error), error, error.__traceback__)
    message = (str(error).splitlines() or [""])[0][:300]
    return HintedError(f"{type(error).__name__}: {message}", hint="see the traceback above")


def _send(out: TextIO, mark: str, frame: dict[str, Any]) -> None:
    sys.stderr.flush()
    out.write(f"\n{mark} {json.dumps(frame)}\n")  # ASCII, one line
    out.flush()


@contextlib.contextmanager
def _answers() -> Iterator[TextIO]:
    """Yield the real standard output; meanwhile file descriptor 1 is a copy of 2."""
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

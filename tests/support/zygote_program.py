"""Forks learners that others ask for: see server_job.py. Not a test itself.

A request is a line of JSON, and so is its answer.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import sys
from typing import Any, NoReturn

import without_compiler  # noqa: F401

import learner.train

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def become(
    arguments: list[str], log: str, cwd: str, env: dict[str, str], errors: str = ""
) -> NoReturn:
    """Be a learner, in a fork of this process; what it prints goes to files, or to one."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    said, told = (
        os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for file in (log, errors or log)
    )
    for number, descriptor in enumerate((nothing, said, told)):
        os.dup2(descriptor, number)
    os.chdir(cwd)
    os.environ.update(env)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    if arguments[0].endswith(".py"):
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
        learner.train.leave(0)
    learner.train.leave(learner.train.main(arguments))


def main() -> None:
    """Answer until nobody asks."""
    ended: dict[int, int] = {}
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        answer: Any
        if "start" in request:
            answer = os.fork()
            if not answer:
                become(request.pop("start"), **request)
            ended.pop(answer, None)  # of another one that had the same number
        else:
            pid = request["poll"]
            if pid not in ended and (found := os.waitpid(pid, os.WNOHANG))[0]:
                ended[pid] = os.waitstatus_to_exitcode(found[1])
            answer = {"code": ended[pid]} if pid in ended else None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

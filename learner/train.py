"""The built-in loop as a program: `python -m learner.train <job dir> <attempt>`.

It is started once for each learner, in the runtime directory. It exits with 0, with EXIT_HALTED
after a halt, or with another code and the reason on standard error. The failure of one learner ends
all of them.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import sys
from pathlib import Path
from typing import NoReturn

from learner.errors import EXIT_HALTED, explain
from learner.exchange import Exchange
from learner.job.stacks import register
from learner.parameter_server.builtin import train_on_server
from learner.system.signals import HaltFlag
from learner.training.allreduce import train_together
from learner.training.setup import open_job, say_finished

EXIT_USAGE = 2


def main(arguments: list[str] | None = None) -> int:
    """Run one learner; return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 2 or not arguments[1].isdecimal():
        print("usage: python -m learner.train <job dir> <attempt>", file=sys.stderr)
        return EXIT_USAGE
    rank = int(os.environ.get("RANK", "0"))
    joined: list[Exchange] = []
    register()
    try:
        halt = HaltFlag().install()
        job = open_job(Path(arguments[0]), int(arguments[1]), rank)
        served = job.plan.parameter_server is not None
        finished = train_on_server(job, halt) if served else train_together(job, halt, joined)
        if finished:
            say_finished()
        return 0 if finished else EXIT_HALTED
    except BaseException as error:  # after any error, the other learners must not wait for this one
        code = explain(error, rank)
        for exchange in joined:
            exchange.abort(code)
        return code


def leave(code: int) -> NoReturn:
    """End this process even if the user's program has left threads and processes running.

    At a normal exit Python would wait for them, possibly forever.
    """
    # The processes that multiprocessing would wait for; the watchdog ends all others.
    for child in multiprocessing.active_children():
        child.kill()
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())

"""Lets a learner write the stacks of all its threads to a file when it gets a signal.

The signal's handler is C code of `faulthandler`: it works even in a process that is blocked. The
same code writes the stacks to the learner's log if a fault such as SIGSEGV ends the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal

STACKS_FILE = "DLCTL_STACKS_FILE"
"""Variable that names the file, on the node's own disk."""
SIGNAL = int(signal.SIGRTMIN) + 11
"""A real-time signal that neither MPI nor NCCL nor Python's libraries use."""


def register() -> None:
    """Write the stacks of this process to its file at `SIGNAL`, to its log at a fault."""
    with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):
        faulthandler.enable()
    path = os.environ.get(STACKS_FILE)
    if not path:
        return
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        # Kept open as long as the process lives.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        faulthandler.register(SIGNAL, file=descriptor, all_threads=True)

"""Processes that serve the tests until their standard input ends."""

from __future__ import annotations

import contextlib
import subprocess


def close_helper(process: subprocess.Popen[str]) -> None:
    """Close the input of a process, and wait for its end; what it forked ends with it."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    process.wait(60)
    process.stdout.close()

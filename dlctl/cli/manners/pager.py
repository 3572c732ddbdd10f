"""The user's pager, for what may be longer than the screen."""

from __future__ import annotations

import contextlib
import io
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dlctl.cli import output


class _Paged(io.TextIOWrapper):
    """What is written for a pager: it goes to the terminal in the end, so it may have colours."""

    def isatty(self) -> bool:
        return True


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        output.warn(f"the pager {command!r} is no command: {error}")
        return []


@contextmanager
def paged(wanted: bool = True) -> Iterator[None]:
    """Show what is printed meanwhile in the pager of `dlctl config pager`, at a terminal only."""
    from dlctl.settings import setting

    command = _words(setting("pager")[0]) if wanted and sys.stdout.isatty() else []
    if not command or command[0] in ("never", "cat"):
        yield
        return
    try:
        pager = subprocess.Popen(command, stdin=subprocess.PIPE)
    except OSError:  # there is none here
        yield
        return
    assert pager.stdin is not None
    terminal, sys.stdout = sys.stdout, _Paged(pager.stdin, errors=output.REPLACING)
    try:
        with contextlib.suppress(BrokenPipeError):  # the user has seen enough
            yield
            sys.stdout.flush()
    finally:
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.close()
        sys.stdout = terminal
        while True:
            with contextlib.suppress(KeyboardInterrupt):  # which is the pager's
                pager.wait()
                break

"""The command dlctl in processes of its own that take no time to start.

A command that is started from scratch spends most of its time on imports.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from zygote import Forked, Zygote

_PIPE_BYTES = 65536


class CommandServer(Zygote):
    """The process that forks commands; several threads may run some."""

    def __init__(self) -> None:
        super().__init__("dlctl")

    def run_command(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdin: str = "",
        timeout_s: float,
    ) -> subprocess.CompletedProcess[str]:
        """Run `dlctl ARGV` to its end, as `subprocess.run` does with pipes.

        As there, what a command leaves running may not hold its standard output open.
        """
        deadline = time.monotonic() + timeout_s
        given, output, errors = (os.pipe() for _ in range(3))
        theirs = [given[0], output[1], errors[1]]
        assert len(stdin) < _PIPE_BYTES
        os.write(given[1], stdin.encode())
        command = self.fork(theirs, ["-m", "dlctl", *argv], env, cwd)
        for number in (*theirs, given[1]):
            os.close(number)
        out, err = _read_all((output[0], errors[0]), deadline)
        code = _end(command, deadline)
        if code is None:
            raise subprocess.TimeoutExpired(["dlctl", *argv], timeout_s, out, err)
        return subprocess.CompletedProcess(["dlctl", *argv], code, out.decode(), err.decode())

    def run_on_terminal(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, columns: int,
        timeout_s: float = 60,
    ) -> tuple[int | None, bytes]:  # fmt: skip
        """Run `dlctl ARGV` on a terminal of so many columns; return its exit code and output."""
        deadline = time.monotonic() + timeout_s
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        command = self.fork([theirs] * 3, ["-m", "dlctl", *argv], env, cwd)
        os.close(theirs)
        printed = b""
        while select.select([ours], [], [], _left_s(deadline))[0]:
            try:
                printed += os.read(ours, _PIPE_BYTES)
            except OSError:  # the end
                break
        os.close(ours)
        return _end(command, deadline), printed


def _end(command: Forked, deadline: float) -> int | None:
    """Return the exit code of a command; None if it was killed because its time was up."""
    try:
        code = command.wait(_left_s(deadline))
    except subprocess.TimeoutExpired:
        command.kill()
        command.wait()
        return None
    return code if _left_s(deadline) else None


def _left_s(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _read_all(descriptors: Sequence[int], deadline: float) -> list[bytes]:
    """Return what comes until every writer has closed its end, or the time is up."""
    found: dict[int, bytes] = dict.fromkeys(descriptors, b"")
    open_still = list(descriptors)
    while open_still and (ready := select.select(open_still, [], [], _left_s(deadline))[0]):
        for descriptor in ready:
            part = os.read(descriptor, _PIPE_BYTES)
            found[descriptor] += part
            if not part:
                open_still.remove(descriptor)
    for descriptor in descriptors:
        os.close(descriptor)
    return list(found.values())

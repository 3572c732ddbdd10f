"""The command dlctl in processes of its own that take no time to start.

One process has imported dlctl and forks each command (see command_program.py): a command that is
started from scratch spends most of its time on imports.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from helper_process import close_helper
from repository import REPOSITORY, SUPPORT

PROGRAM = SUPPORT / "command_program.py"
_PIPE_BYTES = 65536


class CommandServer:
    """The process that forks commands."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        """Held for a question and its answer: several threads may run commands."""
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM)], env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(
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
        pipes = [os.pipe() for _ in range(3)]
        given, said, told = pipes
        theirs = [given[0], said[1], told[1]]
        assert len(stdin) < _PIPE_BYTES
        os.write(given[1], stdin.encode())
        pid = self._ask(
            argv=list(argv), env=dict(env), cwd=str(cwd),
            streams=[f"/proc/{os.getpid()}/fd/{number}" for number in theirs],
        )  # fmt: skip
        for number in (*theirs, given[1]):
            os.close(number)
        out, err = _read_all((said[0], told[0]), deadline)
        code = self._wait(pid, deadline)
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
        terminal = f"/proc/{os.getpid()}/fd/{theirs}"
        pid = self._ask(argv=list(argv), env=dict(env), cwd=str(cwd), streams=[terminal] * 3)
        os.close(theirs)
        printed = b""
        while select.select([ours], [], [], _left_s(deadline))[0]:
            try:
                printed += os.read(ours, _PIPE_BYTES)
            except OSError:  # the end
                break
        os.close(ours)
        return self._wait(pid, deadline), printed

    def _wait(self, pid: int, deadline: float) -> int | None:
        """Return the exit code of a command; None if it was killed because its time was up."""
        descriptor = os.pidfd_open(pid)
        try:
            ended = select.select([descriptor], [], [], _left_s(deadline))[0]
        finally:
            os.close(descriptor)
        if not ended:
            os.kill(pid, signal.SIGKILL)
        code: int = self._ask(wait=pid)
        return code if ended and _left_s(deadline) else None

    def _ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._turn:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End it; its commands end with it."""
        close_helper(self._process)


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

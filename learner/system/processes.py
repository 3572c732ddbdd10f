"""Processes of one node: who descends from whom, who handles a signal, and who must not stay.

Reads /proc (Linux). Elsewhere the process group of the child stands for all descendants.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

from dlctl.contract.ground.processes import Process, all_processes

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")


def _prctl(option: int, value: int) -> None:
    # Not Linux, or a C library without prctl: the other safeguards must suffice.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def end_with_parent() -> None:
    """Ask the kernel to send SIGTERM to this process when its parent dies."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that none gets lost."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def descendants(pid: int, without: frozenset[int] = frozenset(), proc: Path = _PROC) -> list[int]:
    """Return the living descendants of a process; zombies and `without` are left out."""
    children: dict[int, list[Process]] = {}
    for process in all_processes(proc):
        children.setdefault(process.parent, []).append(process)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for process in children.get(waiting.pop(), []):
            if process.pid in without:
                continue
            waiting.append(process.pid)
            if not process.has_ended:
                found.append(process.pid)
    return found


def takes(pid: int, number: int) -> bool:
    """Return whether a process handles a signal, or blocks it until it can."""
    try:
        lines = (_PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return False
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt:", "SigBlk:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def send(pids: list[int], *numbers: int) -> None:
    """Send signals to each of these processes that still exists."""
    for pid in pids:
        for number in numbers:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def send_group(pid: int, number: int) -> None:
    """Send a signal to the process group that a child leads."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def reap_orphans(child: int) -> None:
    """Collect ended processes that were adopted; `child` itself is left to its owner."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid == child:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(ended.si_pid, os.WNOHANG)


class Guard:
    """A tiny process that ends a child's process group when its starter is killed outright.

    SIGKILL can't be passed on; but the kernel closes the pipe between starter and guard.
    Only for single-threaded starters: it forks.
    """

    def __init__(self) -> None:
        read_end, self._write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _stand_guard(read_end, self._write_end)
        os.close(read_end)

    def watch(self, group: int) -> None:
        """Set the process group that the guard ends."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write_end, b"%d\n" % group)

    def dismiss(self) -> None:
        """End the guard without ending the group."""
        self.watch(0)
        os.close(self._write_end)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _stand_guard(read_end: int, write_end: int) -> None:
    try:
        os.close(write_end)
        # Away from signals to the starter's group, and from its pipes: a launcher waits for
        # the end of its children's output.
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        os.closerange(0, read_end)
        os.closerange(read_end + 1, 1024)
        words = bytearray()
        while chunk := os.read(read_end, 64):
            words += chunk
        group = int(words.split()[-1]) if words.split() else 0
        if group > 1:
            os.killpg(group, signal.SIGKILL)
    finally:
        os._exit(0)

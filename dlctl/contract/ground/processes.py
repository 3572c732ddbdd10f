"""The identity of a process across boots, and the end of a child. Reads /proc."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_PROC = Path("/proc")
_KILLED_S = 2.0


class Child(Protocol):
    """The part of a `subprocess.Popen` that `end_child` needs."""

    returncode: int | None

    @property
    def pid(self) -> int:
        """Return its number, which is that of its process group if it leads one."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended; raise TimeoutExpired after so many seconds."""

    def send_signal(self, number: int, /) -> None:
        """Send it a signal."""


@dataclass(frozen=True)
class Process:
    """A line of /proc/PID/stat."""

    pid: int
    state: str
    parent: int
    session: int
    started: int
    """In the kernel's ticks since the boot: a later process with the same number has another."""

    @property
    def has_ended(self) -> bool:
        """Return whether its parent alone has not noticed the end yet; process 1 may never."""
        return self.state in "ZX"


def look(pid: int, proc: Path = _PROC) -> Process | None:
    """Return a process; None if there is none with this number, or no /proc.

    Raises:
        PermissionError: there may be one, but /proc is mounted with hidepid.
    """
    try:
        cells = stat_cells((proc / str(pid) / "stat").read_bytes())
    except PermissionError:
        raise
    except OSError:
        return None
    if not cells:
        return None
    return Process(pid, cells[0].decode(), int(cells[1]), int(cells[3]), int(cells[19]))


def stat_cells(content: bytes) -> list[bytes]:
    """Return what stands behind the name, which may itself hold brackets and spaces."""
    return content.rpartition(b")")[2].split()


def all_processes(proc: Path = _PROC) -> list[Process]:
    """Return all processes that this one sees."""
    found: list[Process] = []
    with suppress(OSError):
        for pid in [int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()]:
            with suppress(PermissionError):
                if process := look(pid, proc):
                    found.append(process)
    return found


def started(pid: int) -> int:
    """Return when a process started; 0 if there is none, or it has ended."""
    with suppress(PermissionError):
        process = look(pid) if pid > 0 else None
        if process and not process.has_ended:
            return process.started
    return 0


def boot_id(proc: Path = _PROC) -> str:
    """Return the kernel's name for this boot; "" if it has none."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def pid_space() -> str:
    """Return a word that is the same only where the same numbers are the same processes.

    Containers of one machine have spaces of their own. "": nobody knows.
    """
    try:
        space = (_PROC / "self/ns/pid").stat().st_ino
    except OSError:
        return ""
    boot = boot_id()
    return f"{boot[:8]}-{space}" if boot else ""


def end_child(child: Child, leave_s: float = 0.0, *, ask: bool = True, group: bool = False) -> int:
    """End a child; return its exit code. One that the kernel keeps is left behind.

    Args:
        leave_s: how long it may take to leave, before SIGKILL.
        ask: whether it gets SIGTERM at first: else it knows that it has to leave.
        group: whether it leads a process group, of which nothing may stay.
    """

    def send(number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number) if group else child.send_signal(number)

    if leave_s and ask:
        send(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(leave_s)
    send(signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        child.wait(_KILLED_S)
    return -signal.SIGKILL if child.returncode is None else child.returncode

"""Find and signal the processes of a job of the local queue."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def _stat(pid: int) -> tuple[str, int, int, int] | None:
    """Return state letter, parent, session and start time, or None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    cells = text.rpartition(")")[2].split()
    return cells[0], int(cells[1]), int(cells[3]), int(cells[19])


def start_time(pid: int) -> int:
    """Return when a process started, or 0 if it is gone or a zombie (process 1 may leave those)."""
    stat = _stat(pid) if pid > 0 else None
    return 0 if stat is None or stat[0] in "ZX" else stat[3]


def boot_id() -> str:
    """Return the kernel's name for this boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def job_processes(marker: bytes, session: int, session_start: int) -> list[int]:
    """Return a job's processes: those with its environment mark or session, and their children."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    leader = _stat(session) if session else None
    reused = leader is not None and leader[3] != session_start
    for entry in Path("/proc").iterdir():
        pid = int(entry.name) if entry.name.isdecimal() else 0
        stat = _stat(pid) if pid and pid != os.getpid() else None
        if stat is None or stat[0] in "ZX":
            continue
        parents[pid] = stat[1]
        if session and stat[2] == session and not reused and stat[3] >= session_start:
            found.add(pid)
        with contextlib.suppress(OSError):
            if marker in (entry / "environ").read_bytes().split(b"\0"):
                found.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def send(pids: list[int], *signals: signal.Signals) -> None:
    """Send a signal to processes, any of which may already be gone."""
    for pid in pids:
        for number in signals:
            with contextlib.suppress(OSError):
                os.kill(pid, number)

"""Find the processes of a job of the local queue."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from dlctl.contract.ground.processes import all_processes, look


def job_processes(marker: bytes, session: int, session_start: int) -> list[int]:
    """Return a job's processes: those with its environment mark or session, and their children."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    leader = look(session) if session else None
    reused = leader is not None and leader.started != session_start
    for each in all_processes():
        if each.has_ended or each.pid == os.getpid():
            continue
        parents[each.pid] = each.parent
        if session and each.session == session and not reused and each.started >= session_start:
            found.add(each.pid)
        with contextlib.suppress(OSError):
            if marker in Path(f"/proc/{each.pid}/environ").read_bytes().split(b"\0"):
                found.add(each.pid)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)

"""What a learner is told from outside: the supervisor's directive, or its silence."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from dlctl.contract import ContractError, Directive, directive_file, read_record, status_file

POLL_S = 0.3
SUPERVISOR_LOST_S = 120.0
"""After so long without a heartbeat of the supervisor nobody would read our end: stop."""
SUPERVISOR_LOST_VARIABLE = "DLCTL_SUPERVISOR_LOST_S"


def refresh(folder: Path) -> None:
    """Make a network file system look again: it may remember for long that a file is absent."""
    with contextlib.suppress(OSError), os.scandir(folder):
        pass


class Outside:
    """Polls for the directive, the supervisor's heartbeat, and the parent process."""

    def __init__(self, job_dir: Path, attempt: int, supervisor_lost_s: float) -> None:
        self._directive = job_dir / directive_file(attempt)
        self._supervisor = job_dir / status_file(attempt, "supervisor", 0)
        self._lost_s = supervisor_lost_s
        self._parent = os.getppid()
        self._seen_ns = 0
        self._silent_s = 0.0
        self._looked = time.monotonic()

    def directive(self) -> Directive | None:
        """Return what the supervisor wants now, if it wants anything."""
        refresh(self._directive.parent)
        try:
            return read_record(Directive, self._directive)
        except (OSError, ContractError):
            return None

    def abandoned(self) -> str:
        """Return why nobody waits for us any more, or an empty text."""
        if os.getppid() != self._parent:
            return "the process that launched it is gone"
        self._listen()
        if self._silent_s > self._lost_s:
            return f"no heartbeat of the supervisor for {self._silent_s:.0f} s"
        return ""

    def _listen(self) -> None:
        now = time.monotonic()
        # Capped: a job that was suspended and goes on must not count the pause as silence.
        passed = min(now - self._looked, 2 * POLL_S)
        self._looked = now
        try:
            changed_ns = self._supervisor.stat().st_mtime_ns
        except OSError:
            changed_ns = self._seen_ns
        if changed_ns != self._seen_ns:
            self._seen_ns, self._silent_s = changed_ns, 0.0
        elif self._seen_ns:
            self._silent_s += passed

"""Save where the processes of a learner are, before they are ended: their stacks, or else facts.

Programs that have registered with `learner.job.stacks` show their own stacks; of other Python
programs py-spy does, if the node has it. Of any process Linux knows its state, and in which
function of the kernel it waits.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dlctl.contract import write_whole
from dlctl.contract.ground.safe_text import masked
from learner.job.stacks import SIGNAL
from learner.system import processes

_ANSWER_S = 3.0
"""How long a process may take to write its stacks."""
_QUIET_S = 0.2
_MOST_PROCESSES = 32
_PROC = Path("/proc")


@dataclass(frozen=True)
class Stacks:
    """The file to which a learner writes its stacks, and the one in which they are saved."""

    own: Path
    saved: Path

    def save(self, pids: Sequence[int], secrets: Sequence[str] = ()) -> None:
        """Save the stacks of these processes; what can't be found out is left out."""
        parts = [f"{time.strftime('%Y-%m-%d %H:%M:%S')} on {socket.gethostname()}\n"]
        for pid in pids[:_MOST_PROCESSES]:
            parts.append(f"\n== {_facts(pid)}\n{self._stack(pid)}")
        with contextlib.suppress(OSError):
            write_whole(self.saved, masked("".join(parts), secrets))

    def _stack(self, pid: int) -> str:
        if processes.takes(pid, SIGNAL):
            return self._ask(pid)
        if (spy := shutil.which("py-spy")) and "python" in _link(pid):
            return _run([spy, "dump", "--pid", str(pid)])
        return ""

    def _ask(self, pid: int) -> str:
        """Return what the process writes to its file on the signal."""
        before = _size(self.own)
        processes.send([pid], SIGNAL)
        until = time.monotonic() + _ANSWER_S
        size, since = before, time.monotonic()
        while (now := time.monotonic()) < until:
            if (found := _size(self.own)) != size:
                size, since = found, now
            elif size > before and now - since > _QUIET_S:
                break
            time.sleep(0.02)
        try:
            with self.own.open("rb") as file:
                file.seek(before)
                return file.read().decode(errors="replace")
        except OSError:
            return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _facts(pid: int) -> str:
    """Return a line about a process: its number, state, threads, wait and command."""
    status = dict(line.split(":", 1) for line in _read(pid, "status").splitlines() if ":" in line)
    state = " ".join(status.get("State", "?").split())
    waits = _read(pid, "wchan").strip("0\n")
    command = " ".join(_read(pid, "cmdline").split("\0")).strip() or status.get("Name", "").strip()
    threads = status.get("Threads", "?").strip()
    where = f", waits in {waits}" if waits else ""
    return f"process {pid}: {state}{where}, {threads} threads: {command[:300]}"


def _read(pid: int, name: str) -> str:
    try:
        return (_PROC / str(pid) / name).read_text(errors="replace")
    except OSError:
        return ""


def _link(pid: int) -> str:
    try:
        return (_PROC / str(pid) / "exe").readlink().name
    except OSError:
        return ""


def _run(argv: list[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, timeout=10, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{error}\n"
    return (done.stdout or done.stderr).decode(errors="replace")

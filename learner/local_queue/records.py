"""The local queue's state: a JSON file per job below `<root>/queue/{active,ended}`, and one lock.

It handles records and checks which processes live; it starts none. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from dlctl.contract import write_whole
from dlctl.contract.ground.processes import all_processes, boot_id, look, started
from learner.system.processes import send

FOREIGN_STALE_S = 600.0
"""A record from another host that was not touched for this long belongs to a dead runner."""
RUNNER_STARTS_S = 60.0
"""A job that is older than this, and has never had a runner, will not get one by itself."""
KEEP_ENDED = 1000
ID_WIDTH = 9


@dataclass
class QueuedJob:
    """One job. `state` is one of Slurm's words."""

    id: int
    token: str
    job_dir: str
    script: str
    attempt: str
    output: str
    cpus: int
    total_cpus: int
    time_s: int | None
    halt_margin_s: int
    kill_wait_s: float
    state: str = "PENDING"
    reason: str = ""
    host: str = ""
    boot_id: str = ""
    runner_pid: int = 0
    runner_start: int = 0
    """Clock ticks since boot; together with the pid it identifies a process forever."""
    batch_pid: int = 0
    batch_start: int = 0
    cancelled: bool = False
    exit_code: str = ""
    submitted_at: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0


class Queue:
    """The records below `<root>/queue`; every change is made inside `lock`."""

    def __init__(self, root: str) -> None:
        self.folder = Path(root).absolute() / "queue"
        self.host = os.uname().nodename

    def exists(self) -> bool:
        """Return whether anything was ever submitted."""
        return (self.folder / "lock").exists()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the queue's only lock. The kernel releases it at death, and no child inherits it.

        A POSIX lock is lost when *any* descriptor of the file closes: nothing else may open it.
        """
        for name in ("active", "ended"):
            (self.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def path(self, job_id: int, state: str = "active") -> Path:
        """Return the file of a job."""
        return self.folder / state / f"{job_id:0{ID_WIDTH}d}.json"

    def read(self, path: Path) -> QueuedJob | None:
        """Return a record; None if it is gone or unreadable (for example from a newer version)."""
        try:
            content = json.loads(path.read_bytes())
            known = {field.name for field in fields(QueuedJob)}
            return QueuedJob(**{key: value for key, value in content.items() if key in known})
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    def records(self, state: str) -> list[QueuedJob]:
        """Return the `active` or `ended` jobs, oldest first."""
        found = (self.read(path) for path in sorted((self.folder / state).glob("[0-9]*.json")))
        return [record for record in found if record is not None]

    def write(self, record: QueuedJob, state: str = "active") -> None:
        """Write a record whole: a reader sees the old one or the new one."""
        write_whole(self.path(record.id, state), json.dumps(asdict(record)), mode=0o600)

    def end(self, record: QueuedJob, state: str, reason: str, exit_code: str) -> None:
        """Record a job's end, and remove the oldest records of ended jobs."""
        record.state, record.reason, record.exit_code = state, reason, exit_code
        record.ended_at = time.time()
        self.write(record, "ended")
        self.path(record.id).unlink(missing_ok=True)
        for path in sorted((self.folder / "ended").glob("[0-9]*.json"))[:-KEEP_ENDED]:
            path.unlink(missing_ok=True)

    def next_id(self) -> int:
        """Return one more than the highest recorded id."""
        return 1 + max([*self._ids("active"), *self._ids("ended")], default=0)

    def _ids(self, state: str) -> list[int]:
        """Return the ids of the `active` or `ended` jobs, lowest first."""
        return sorted(int(path.stem) for path in (self.folder / state).glob("[0-9]*.json"))

    def waits(self, job_id: int) -> bool:
        """Return whether a job of this host waits for its turn with a runner that lives."""
        record = self.read(self.path(job_id))
        return (record is not None and record.state == "PENDING" and record.host == self.host
                and self.runner_lives(record))  # fmt: skip

    def waiting_before(self, job_id: int) -> int | None:
        """Return the newest of the older jobs that wait on this host; needs no lock."""
        older = (each for each in reversed(self._ids("active")) if each < job_id)
        return next(filter(self.waits, older), None)

    def marker(self, job_id: int) -> dict[str, str]:
        """Return the variables that name the job in each of its processes."""
        return {"DLCTL_JOB_ID": str(job_id), "DLCTL_QUEUE_JOB": f"{self.folder}:{job_id}"}

    def processes(self, record: QueuedJob) -> list[int]:
        """Return the processes of a job."""
        mark = f"DLCTL_QUEUE_JOB={self.folder}:{record.id}"
        return job_processes(os.fsencode(mark), record.batch_pid, record.batch_start)

    def runner_lives(self, record: QueuedJob) -> bool:
        """Return whether a job's runner lives; a runner on another host must touch its record."""
        if record.host != self.host:
            with contextlib.suppress(OSError):
                return time.time() - self.path(record.id).stat().st_mtime < FOREIGN_STALE_S
            return False
        same = record.runner_start != 0 and record.boot_id == boot_id()
        return same and started(record.runner_pid) == record.runner_start

    def reap(self) -> list[QueuedJob]:
        """End the jobs whose runner is gone; return those that wait without one. Under the lock."""
        orphans = []
        for record in self.records("active"):
            if self.runner_lives(record):
                continue
            if record.state == "PENDING":
                if not _runner_starts(record):
                    orphans.append(record)
            elif record.host != self.host or record.boot_id != boot_id():
                self.end(record, "NODE_FAIL", "the machine was restarted", "")
            else:
                self.kill_all(record)
                self.end(record, "FAILED", "the job's runner was killed", "")
        return orphans

    def kill_all(self, record: QueuedJob) -> None:
        """Kill the remaining processes of a job, in several rounds, because they may fork."""
        for _ in range(50):
            if not (left := self.processes(record)):
                return
            send(left, signal.SIGKILL)
            time.sleep(0.02)

    def may_start(self, record: QueuedJob) -> bool:
        """Return whether it is a job's turn: no older job waits, and its CPUs are free.

        Call this under the lock. An older job whose runner is gone does not count, because only the
        next `list` starts its runner again; one whose runner is still starting does.
        """
        mine = [r for r in self.records("active") if r.host == self.host and r.id != record.id]
        older = [r for r in mine if r.state == "PENDING" and r.id < record.id]
        if any(self.runner_lives(r) or _runner_starts(r) for r in older):
            return False
        used = sum(r.cpus for r in mine if r.state != "PENDING")
        return used + record.cpus <= record.total_cpus


def _runner_starts(record: QueuedJob) -> bool:
    """Return whether a job is so new that its first runner may still be on its way."""
    return not record.runner_start and time.time() - record.submitted_at < RUNNER_STARTS_S


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

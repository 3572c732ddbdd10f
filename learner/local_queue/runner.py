"""The runner of one job of the local queue: waits for its turn, runs the script, records the end.

It is a separate process, started by `start_runner`; it does not depend on any parent process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from dlctl.contract.ground.processes import boot_id, started
from dlctl.contract.launchers import outside_of_job
from learner.local_queue.records import Queue, QueuedJob
from learner.system.processes import send

PROGRAM = Path(__file__).absolute().parents[1] / "localqueue.py"
POLL_S = 0.2
TOUCH_S = 15.0


class Runner:
    """Waits for one job's turn, runs it, and records its end."""

    def __init__(self, queue: Queue, job_id: int) -> None:
        self.queue = queue
        self.job_id = job_id
        self.ended_by: int | None = None
        # Unlike SIG_IGN, handlers are not inherited by the job.
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1,
                       signal.SIGUSR2, signal.SIGPIPE):  # fmt: skip
            signal.signal(number, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    def _on_terminate(self, number: int, _frame: FrameType | None) -> None:
        self.ended_by = number

    def run(self) -> None:
        """Wait for the job's turn, run it, and record its end."""
        record, before = self._register(), None
        while record is not None and record.state == "PENDING":
            if self.ended_by is not None:
                return  # stays PENDING: the next `list` starts a runner again
            # Only the first in line takes the lock: hundreds that did would keep out who submits.
            if before is None or not self.queue.waits(before):
                before = self.queue.waiting_before(self.job_id)
            record = self._start() if before is None else self._read()
            if record is not None and record.state == "PENDING":
                time.sleep(POLL_S)
                self._touch()
        if record is not None:
            self._run_batch(record)

    def _read(self) -> QueuedJob | None:
        return self.queue.read(self.queue.path(self.job_id))

    def _start(self) -> QueuedJob | None:
        """Begin to run if it is the job's turn; return its record, None if it is gone."""
        with self.queue.lock():
            record = self._read()
            if record is not None:
                self.queue.reap()
                if self.queue.may_start(record):
                    record.state, record.started_at = "RUNNING", time.time()
                    self.queue.write(record)
            return record

    def _register(self) -> QueuedJob | None:
        """Become the job's runner, unless it has one, or the job is gone."""
        with self.queue.lock():
            record = self._read()
            if record is None or record.state != "PENDING" or (
                record.runner_start and self.queue.runner_lives(record)
            ):  # fmt: skip
                return None
            record.host, record.boot_id = self.queue.host, boot_id()
            record.runner_pid, record.runner_start = os.getpid(), started(os.getpid())
            self.queue.write(record)
            return record

    def _run_batch(self, record: QueuedJob) -> None:
        began = time.monotonic()
        try:
            batch = self._start_batch(record)
        except OSError as error:
            with self.queue.lock():
                self.queue.end(record, "FAILED", f"the script did not start: {error}", "1:0")
            return
        record.batch_pid, record.batch_start = batch.pid, started(batch.pid)
        with self.queue.lock():
            now = self._read()
            record.cancelled = now is not None and now.cancelled
            self.queue.write(record)
        state, reason = self._watch(record, batch, began)
        if state:
            self._set_ending(record, reason)
        self._finish(record)
        code = batch.wait()
        if not state:
            state, reason = ("FAILED", "NonZeroExitCode") if code else ("COMPLETED", "")
        with self.queue.lock():
            self.queue.end(record, state, reason, f"0:{-code}" if code < 0 else f"{code}:0")

    def _start_batch(self, record: QueuedJob) -> subprocess.Popen[bytes]:
        bash = shutil.which("bash") or "/bin/bash"
        output = Path(record.job_dir, record.output)
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("ab") as file:
            return subprocess.Popen(
                [bash, str(Path(record.job_dir, record.script)), record.attempt],
                cwd=record.job_dir, env={**os.environ, **self.queue.marker(record.id)},
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip

    def _watch(
        self, record: QueuedJob, batch: subprocess.Popen[bytes], began: float
    ) -> tuple[str, str]:
        """Return why the job must end now, or nothing once the script has ended by itself."""
        warned = record.time_s is None
        while batch.poll() is None:
            elapsed_s = time.monotonic() - began
            now = self._read()
            if record.cancelled or (now is not None and now.cancelled):
                return "CANCELLED", "cancelled"
            if self.ended_by is not None:
                return "FAILED", f"the job's runner was ended by signal {self.ended_by}"
            if record.time_s is not None and elapsed_s >= record.time_s:
                return "TIMEOUT", "TimeLimit"
            if not warned and elapsed_s >= (record.time_s or 0) - record.halt_margin_s:
                send([batch.pid], signal.SIGUSR2)  # as Slurm's --signal=B:USR2@margin
                warned = True
            self._touch()
            time.sleep(POLL_S)
        return "", ""

    def _set_ending(self, record: QueuedJob, reason: str) -> None:
        record.state, record.reason = "COMPLETING", reason
        with self.queue.lock():
            self.queue.write(record)

    def _finish(self, record: QueuedJob) -> None:
        """End every process of the job: SIGTERM, time to leave, SIGKILL."""
        send(self.queue.processes(record), signal.SIGCONT, signal.SIGTERM)
        deadline = time.monotonic() + record.kill_wait_s
        while time.monotonic() < deadline and self.queue.processes(record):
            time.sleep(POLL_S / 4)
        self.queue.kill_all(record)

    def _touch(self) -> None:
        with contextlib.suppress(OSError):
            path = self.queue.path(self.job_id)
            if time.time() - path.stat().st_mtime > TOUCH_S:
                os.utime(path)


def start_runner(queue: Queue, job_id: int) -> None:
    """Start a job's runner in a new session, so that it survives its caller.

    The runner is a new program, with no marks of another job in its environment.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            os.closerange(3, 65536)
            os.chdir("/")
            program = [sys.executable, "-I", str(PROGRAM), "run"]
            arguments = [f"--root={queue.folder.parent}", str(job_id)]
            env = outside_of_job(os.environ)
            for name in queue.marker(0):  # of the job that submits this one
                env.pop(name, None)
            os.execve(sys.executable, [*program, *arguments], env)  # noqa: S606
    finally:
        os._exit(0)

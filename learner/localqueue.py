"""The `local` scheduler: a small queue on one machine, run where the jobs run.

    python3 -I localqueue.py submit|list|cancel …

Standard library only, started by path with `-I`: it needs nothing installed, and no module in the
current folder can shadow the library's. It knows nothing about plans or training; numbers come as
options. No daemon: each job has a runner process (`learner.local_queue.runner`), detached from the
terminal.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

# Started by path: the runtime directory holds only our packages, so it shadows nothing.
sys.path.insert(0, str(Path(__file__).absolute().parents[1]))

from learner.local_queue.records import Queue, QueuedJob  # noqa: E402
from learner.local_queue.runner import Runner, start_runner  # noqa: E402

REFUSED = 3
KILL_WAIT_S = 30.0
"""The time between SIGTERM and SIGKILL, like Slurm's KillWait."""


def submit(options: argparse.Namespace) -> int:
    """Queue a job and print its id; for a known token, print the id of the first job."""
    queue = Queue(options.root)
    if not Path(options.job_dir, options.script).is_file():
        return _refuse(f"{options.job_dir}/{options.script} does not exist")
    total = options.total_cpus or len(os.sched_getaffinity(0))
    new: list[QueuedJob] = []
    try:
        with queue.lock():
            known = [*queue.records("active"), *queue.records("ended")]
            record = next((r for r in known if r.token == options.token), None)
            if record is None:
                record = QueuedJob(
                    id=queue.next_id(), token=options.token, job_dir=options.job_dir,
                    script=options.script, attempt=options.attempt, output=options.output,
                    cpus=_cpus(options, total), total_cpus=total,
                    time_s=options.time_s, halt_margin_s=options.halt_margin_s,
                    kill_wait_s=options.kill_wait_s, host=queue.host, submitted_at=time.time(),
                )  # fmt: skip
                queue.write(record)
                new = [record]
            orphans = queue.reap()
    except OSError as error:
        return _refuse(f"{queue.folder}: {error}")
    for waiting in (*new, *orphans):
        start_runner(queue, waiting.id)
    sys.stdout.write(f"{record.id}\n")
    return 0


def _cpus(options: argparse.Namespace, total: int) -> int:
    """Return how many CPUs a job counts for: a job that needs another one never waits for it."""
    beside: int = options.beside_cpus
    return max(0 if beside else 1, min(int(options.cpus), total - beside))


def _refuse(message: str) -> int:
    sys.stderr.write(f"{message}\n")
    return REFUSED


def list_jobs(options: argparse.Namespace) -> int:
    """Print the jobs, one row each; end jobs that lost their runner, or restart the runner."""
    queue = Queue(options.root)
    if not queue.exists():
        return 0
    with queue.lock():
        orphans = queue.reap()
        jobs = [*queue.records("ended"), *queue.records("active")]
    for orphan in orphans:
        start_runner(queue, orphan.id)
    for job in jobs:
        reason = job.reason or ("Resources" if job.state == "PENDING" else "")
        cells = (
            job.id,
            job.token,
            job.state,
            reason,
            job.host,
            f"dlctl:{job.token}",
            job.exit_code,
        )
        sys.stdout.write("\036" + "\037".join(map(str, cells)) + "\n")
    return 0


def cancel(options: argparse.Namespace) -> int:
    """Remove a waiting job, or let the runner end a running one; ignore a job that is gone."""
    queue = Queue(options.root)
    if not queue.exists() or not options.job_id.isdecimal():
        return 0
    with queue.lock():
        queue.reap()
        record = queue.read(queue.path(int(options.job_id)))
        if record is not None and record.state == "PENDING":
            queue.end(record, "CANCELLED", "cancelled", "0:0")
        elif record is not None:
            record.cancelled = True
            queue.write(record)
    return 0


def run(options: argparse.Namespace) -> int:
    """Run as the runner of a job (started by `submit` and `list`)."""
    Runner(Queue(options.root), int(options.job_id)).run()
    return 0


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="A small queue of jobs on one machine.")
    commands = parser.add_subparsers(required=True)
    for name, function in (("submit", submit), ("list", list_jobs), ("cancel", cancel),
                           ("run", run)):  # fmt: skip
        command = commands.add_parser(name, help=function.__doc__)
        command.set_defaults(function=function)
        command.add_argument("--root", required=True)
        if name in ("cancel", "run"):
            command.add_argument("job_id")
        if name == "submit":
            for text in ("token", "job-dir", "script", "attempt", "output"):
                command.add_argument(f"--{text}", required=True)
            command.add_argument("--cpus", type=int, default=1)
            command.add_argument("--total-cpus", type=int)
            command.add_argument("--beside-cpus", type=int, default=0)
            command.add_argument("--time-s", type=int)
            command.add_argument("--halt-margin-s", type=int, default=0)
            command.add_argument("--kill-wait-s", type=float, default=KILL_WAIT_S)
    return parser


def main() -> int:
    """Run one command."""
    if sys.version_info < (3, 8):  # noqa: UP036 - the machine's Python is not ours to choose
        return _refuse(f"{sys.executable} is Python {sys.version.split()[0]}, not 3.8 or newer")
    options = _options().parse_args()
    return int(options.function(options))


if __name__ == "__main__":
    sys.exit(main())

"""Batch schedulers as pure pairs: a question's script and its answer's parser."""

from __future__ import annotations

from dlctl.errors import SiteError
from dlctl.scheduler.base import Job, JobState, Scheduler

__all__ = ["Job", "JobState", "Scheduler", "make_scheduler"]


def make_scheduler(
    kind: str,
    *,
    path: str | None = None,
    accounting: bool = True,
    python: str | None = None,
    runtime_dir: str | None = None,
    cpus: int | None = None,
) -> Scheduler:
    """Return the scheduler of a site. Does no input or output.

    Args:
        kind: `slurm` or `local`.
        path: slurm: folder of its commands, where they are not on PATH.
        accounting: slurm: whether sacct is asked.
        python: local: the Python (3.10 or newer) that keeps the queue.
        runtime_dir: local: where the runtime of this version is or will be.
        cpus: local: how many CPUs the jobs share; all of the machine's by default.
    """
    if kind == "slurm":
        from dlctl.scheduler.slurm import Slurm

        return Slurm(path=path, accounting=accounting)
    if kind == "local":
        from dlctl.scheduler.local import LocalQueue

        return LocalQueue(python=python or "python3", runtime_dir=runtime_dir, cpus=cpus)
    raise SiteError(
        f"Scheduler {kind!r} is not known.", hint="Set the site's scheduler to slurm or local."
    )

"""Batch schedulers as pure pairs: the script of a question and the parser of its answer."""

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
        path: slurm: folder of its commands, if they are not on PATH.
        accounting: slurm: whether to ask sacct.
        python: local: the Python (3.10 or newer) that runs the queue.
        runtime_dir: local: the present or future folder of this version's runtime.
        cpus: local: how many CPUs the jobs share; all of the machine's by default.
    """
    if kind == "slurm":
        from dlctl.scheduler.slurm import Slurm

        return Slurm(path=path, accounting=accounting)
    if kind == "local":
        from dlctl.scheduler.local import LocalQueue

        return LocalQueue(python=python or "python3", runtime_dir=runtime_dir, cpus=cpus)
    raise SiteError(
        f"Unknown scheduler {kind!r}.", hint="Set the site's scheduler to slurm or local."
    )

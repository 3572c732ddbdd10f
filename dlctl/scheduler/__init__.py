"""Batch schedulers as pure pairs: the script of a question and the parser of its answer.

To add one, write its class, add it here, and write what it tells a job into
`templates/schedulers/`; `learner/job/batch/` is the job's own half.
"""

from __future__ import annotations

import dataclasses
from importlib import import_module
from typing import Any

from dlctl.errors import SiteError
from dlctl.scheduler.base import Job, JobState, Scheduler

__all__ = ["SCHEDULERS", "Job", "JobState", "Scheduler", "make_scheduler", "scheduler_class"]

SCHEDULERS = {"slurm": "dlctl.scheduler.slurm.Slurm", "local": "dlctl.scheduler.local.LocalQueue"}
"""The name in a site's file → the class, which is imported when it is needed."""


def scheduler_class(kind: str) -> type[Any]:
    """Return the class of a `Scheduler`.

    Raises:
        SiteError: there is none of this kind.
    """
    if kind not in SCHEDULERS:
        raise SiteError(
            f"Unknown scheduler {kind!r}.",
            hint=f"Set the site's scheduler to {' or '.join(SCHEDULERS)}.",
        )
    module, _, name = SCHEDULERS[kind].rpartition(".")
    return getattr(import_module(module), name)  # type: ignore[no-any-return]


def make_scheduler(kind: str, **means: Any) -> Scheduler:
    """Return the scheduler of a site. Does no input or output.

    Args:
        means: What a site's file says for the fields of any scheduler; None says nothing.
    """
    scheduler = scheduler_class(kind)
    own = {field.name for field in dataclasses.fields(scheduler)}
    given = {k: v for k, v in means.items() if k in own and v is not None}
    return scheduler(**given)  # type: ignore[no-any-return]

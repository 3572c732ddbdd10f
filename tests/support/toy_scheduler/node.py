"""A job's own half of a scheduler that is made up."""

from __future__ import annotations

from learner.job.batch.base import BatchSystem


class Toy(BatchSystem):
    """Its jobs know their id."""

    kind = "toy"
    job_variable = "TOY_JOBID"
    allocates = True

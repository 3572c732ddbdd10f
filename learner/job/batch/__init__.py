"""The batch system that runs a job, as the job's own programs see it: one class for each.

`batch_system(plan)` is all that callers need. To add one, write its class and add it here.
"""

from __future__ import annotations

import os
import socket

from dlctl.contract import Plan
from learner.job.batch.base import REQUEUED, UNEXPLAINED, BatchSystem, Ending, Silent
from learner.job.batch.slurm import Slurm

__all__ = ["REQUEUED", "UNEXPLAINED", "BatchSystem", "Ending", "Silent", "batch_system",
           "node_name", "own_job_id"]  # fmt: skip

SYSTEMS: dict[str, type[BatchSystem]] = {each.kind: each for each in (Slurm, BatchSystem)}


def batch_system(plan: Plan) -> BatchSystem:
    """Return what runs the jobs of a plan."""
    return SYSTEMS.get(plan.batch.scheduler, BatchSystem)(plan)


def own_job_id(otherwise: str = "") -> str:
    """Return the id of the job in which this process runs."""
    found = (os.environ.get(each.job_variable) for each in SYSTEMS.values())
    return next(filter(None, found), otherwise)


def node_name() -> str:
    """Return the batch system's name for this node, or else the host's."""
    # A process that mpirun has started on another node may have inherited the first node's name.
    by_mpirun = any(name in os.environ for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK"))
    named = () if by_mpirun else [os.environ.get(each.node_variable) for each in SYSTEMS.values()]
    return next(filter(None, named), socket.gethostname())

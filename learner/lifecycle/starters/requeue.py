"""Slurm runs the same job again, after a hold of 2 minutes on most sites."""

from __future__ import annotations

import os
import subprocess

from dlctl.contract import StarterKind, VerdictKind
from learner.job.slurm import slurm_command
from learner.lifecycle.starters.base import CanNotStart, Situation

_TIMEOUT_S = 60.0


class Requeue:
    """Puts this job back into the queue; in its next run it goes on with the next attempt.

    Slurm's hold is left as it is: cut short without `ExcNodeList` of the old nodes, a requeued job
    that gets one of them dies ("Job credential revoked", Slurm 22.05), and nobody of this job is
    left to set that list once it is back in the queue.
    """

    kind = StarterKind.REQUEUE
    runs_here = False
    begins = False

    def objection(self, situation: Situation) -> str:
        """Return why this job can't run the attempt."""
        if not situation.in_job or not os.environ.get("SLURM_JOB_ID"):
            return "the job has ended"
        if situation.action.memory_factor > 1:
            return "the job has too little memory"
        if situation.bad_hosts or situation.kind is VerdictKind.GPU_ERROR:
            return "the job may get the bad node again"
        return ""

    def start(self, situation: Situation) -> str:
        """Requeue this job, which Slurm then ends."""
        scontrol = slurm_command(situation.plan, "scontrol")
        argv = [scontrol, "requeue", os.environ["SLURM_JOB_ID"]]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CanNotStart(str(error)) from error
        if done.returncode:
            raise CanNotStart(done.stderr.strip() or f"exit code {done.returncode}")
        return "This job is in the queue again, and starts it."

"""The batch system runs the same job again."""

from __future__ import annotations

from dlctl.contract import StarterKind, VerdictKind
from learner.job.batch import batch_system, own_job_id
from learner.lifecycle.starters.base import CanNotStart, Situation


class Requeue:
    """Puts this job back into the queue; in its next run it goes on with the next attempt."""

    kind = StarterKind.REQUEUE
    runs_here = False
    begins = False

    def objection(self, situation: Situation) -> str:
        """Return why this job can't run the attempt."""
        if not situation.in_job or not own_job_id():
            return "the job has ended"
        if situation.action.memory_factor > 1:
            return "the job has too little memory"
        if situation.bad_hosts or situation.kind is VerdictKind.GPU_ERROR:
            return "the job may get the bad node again"
        return ""

    def start(self, situation: Situation) -> str:
        """Requeue this job, which is then ended."""
        if why_not := batch_system(situation.plan).requeue():
            raise CanNotStart(why_not)
        return "This job is in the queue again, and starts it."

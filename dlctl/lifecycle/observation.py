"""What one query of the site has shown about one training. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dlctl import contract
from dlctl.contract import Status, Verdict
from dlctl.scheduler.base import Job


@dataclass(frozen=True)
class Observation:
    """What one query of the site has shown about one training."""

    now: float
    """The site's clock, Unix seconds."""
    begun: bool = False
    """The receipt exists, which is written before the scheduler is asked."""
    answer: tuple[int, str, str] | None = None
    """The scheduler's answer to the submission: exit code, standard output, standard error."""
    claim: str = ""
    """The job id that the job script wrote."""
    fenced: bool = False
    """dlctl itself has claimed the attempt: no job will ever run it."""
    supervisor: Status | None = None
    learner: Status | None = None
    """Learner 0's."""
    epochs: int = 0
    """Of the plan; 0 if the training's own program decides."""
    verdict: Verdict | None = None
    cancel_asked: bool = False
    halt_asked: bool = False
    next_begun: bool = False
    """The next attempt has begun: this one counts no more."""
    continues: bool = False
    """The plan says that the site's jobs, or dlctl, go on by themselves after a fault."""
    goes_on: bool | None = None
    """The same, or None as long as nobody has read a plan."""
    exists: bool = True
    """The job directory holds any of the files that are read: a purge may leave some."""
    job: Job | None = None
    """What the queue says of the newest attempt."""
    successor: Job | None = None
    """The next of the jobs that were submitted beforehand and still wait."""
    history: Job | None = None
    """What the accounting says of it."""
    longest_s: int | None = None
    """The longest time of the job's partition, as the site's file knows it."""
    queue_answered: bool = True
    queue_problem: str = ""

    @property
    def awaited(self) -> Job | None:
        """Return the job in the queue that is to start the next attempt."""
        action = self.verdict.action if self.verdict else None
        jobs = {contract.StarterKind.REQUEUE: self.job,
                contract.StarterKind.SUCCESSOR: self.successor}  # fmt: skip
        job = {str(kind): job for kind, job in jobs.items()}.get(action.starter if action else "")
        return job if job and not job.state.final else None

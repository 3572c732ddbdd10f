"""What one query of the site has shown about a training, and whether its next attempt is due."""

from __future__ import annotations

from dataclasses import dataclass

from dlctl import contract
from dlctl.contract import State, Status, Verdict
from dlctl.record import Record
from dlctl.scheduler.base import Job

PATIENCE_S = 60.0
"""How long a node may take to begin the attempt that it has announced."""


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
        is_requeued = action is not None and action.starter == contract.StarterKind.REQUEUE
        return self.job if is_requeued and self.job and not self.job.state.final else None


def is_due(record: Record, seen: Observation) -> bool:
    """Return whether the login side has to see to the next attempt: nobody else does."""
    if seen.next_begun or seen.cancel_asked or seen.halt_asked or not seen.exists:
        return False
    if seen.awaited is not None:
        return False
    if seen.verdict and seen.verdict.action is None:  # of a node that outlived the supervisor's
        return seen.continues and seen.verdict.state in (State.FAILED, State.HALTED)
    action = seen.verdict.action if seen.verdict else None
    if action is not None:
        patience_s = 0.0 if action.starter == contract.StarterKind.CLIENT else PATIENCE_S
        return action.goes_on and seen.now >= action.not_before + patience_s
    # A job that ended without a word: its supervisor was killed, or its first node was lost.
    return (
        seen.verdict is None and record.state in (State.FAILED, State.HALTED)
        and bool(seen.claim) and seen.continues
    )  # fmt: skip


class JobsByName:
    """The queue's jobs by token and by id: with a loop for each record, 1,000 take a second."""

    def __init__(self, jobs: list[Job]) -> None:
        self._by_token: dict[str, list[Job]] = {}
        self._by_id: dict[str, list[Job]] = {}
        for job in jobs:
            for token in {job.name, job.comment.removeprefix("dlctl:")}:
                self._by_token.setdefault(token, []).append(job)
            self._by_id.setdefault(job.job_id, []).append(job)

    def find(self, record: Record, look: Observation) -> Job | None:
        """Return the job of the record's attempt, the one that lives rather than one that ended."""
        mine = list(self._by_token.get(contract.token(record.training_id, record.attempt), []))
        # Later attempts may run in an earlier one's job. The scheduler may reuse an id: a job of
        # another training is never ours.
        ours = f"dlctl:{record.training_id}."
        for job_id in {look.claim, record.job_id} - {""}:
            mine += [
                job for job in self._by_id.get(job_id, [])
                if not job.comment.startswith("dlctl:") or job.comment.startswith(ours)
            ]  # fmt: skip
        return max(
            mine, key=lambda job: (not job.state.final, len(job.job_id), job.job_id), default=None
        )

"""The scheduler seam: each action is a pure pair, text to run and a parser of the answer.

A scheduler never runs anything: `dlctl.lifecycle` runs the text through a transport. So all of it
is testable with strings, and any transport goes with any scheduler.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from dlctl.contract import Plan


class JobState(enum.Enum):
    """The state of a job, the same for all schedulers; `Job.word` keeps the scheduler's own."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    ENDING = "ENDING"
    """COMPLETING and similar: the processes are ending."""
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"
    """A word that this version does not know: never an end."""

    @property
    def final(self) -> bool:
        """Return whether the job is over for good."""
        return self in _FINAL


_FINAL = {
    JobState.COMPLETED, JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY,
    JobState.NODE_FAIL, JobState.PREEMPTED, JobState.CANCELLED,
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One job as the scheduler sees it."""

    job_id: str
    name: str
    """The token: `dlctl.contract.token(training_id, attempt)`."""
    state: JobState
    word: str
    """The scheduler's own word, e.g. `OUT_OF_ME+`."""
    reason: str = ""
    """Why the job waits or how it ended, in the scheduler's words."""
    nodes: str = ""
    exit_code: str = ""
    """`exit:signal`, where known."""
    comment: str = ""


class Scheduler(Protocol):
    """One kind of batch scheduler. All methods are pure.

    Scripts are POSIX shell for a transport's `run`. The submit script runs in the job directory.
    """

    kind: str

    def submit_script(self, plan: Plan, attempt: int) -> str:
        """Return the text that submits `job.sbatch <attempt>` and prints the scheduler's answer."""
        ...

    def parse_submit(self, exit_code: int, stdout: str, stderr: str) -> str:
        """Return the job id.

        Raises:
            SubmitRejected: the scheduler said no, or was not reached; nothing was submitted.
            SubmitUnknown: the answer was lost; the job may exist, or appear later.
        """
        ...

    def queue_script(self, root: str) -> str:
        """Return the text that lists this user's jobs that the scheduler still remembers."""
        ...

    def parse_queue(self, exit_code: int, stdout: str, stderr: str) -> list[Job]:
        """Return the jobs.

        Raises:
            SchedulerUnavailable: the controller does not answer (the state is stale, not FAILED).
            SchedulerParseError
        """
        ...

    def history_script(self, job_ids: list[str]) -> str | None:
        """Return the text that asks the accounting about these jobs, or None if there is none."""
        ...

    def parse_history(self, exit_code: int, stdout: str, stderr: str) -> list[Job]:
        """Return what the accounting knows; an accounting that is absent or down knows nothing."""
        ...

    def lookup_script(self, token: str, root: str) -> str:
        """Return the text that looks for jobs of a submission whose answer was lost."""
        ...

    def parse_lookup(self, token: str, exit_code: int, stdout: str, stderr: str) -> list[str]:
        """Return the ids of the jobs with this token, oldest first.

        Nothing found is no proof: a controller that hung may still start the job later.

        Raises:
            SchedulerUnavailable
        """
        ...

    def cancel_script(self, job_id: str, root: str) -> str:
        """Return the text that ends a job; a job that is gone already is no failure."""
        ...

    def parse_cancel(self, exit_code: int, stdout: str, stderr: str) -> None:
        """Return if the job is ending or gone.

        Raises:
            SchedulerUnavailable: the request may not have arrived; cancelling again is safe.
        """
        ...

    def node_script(self, plan: Plan, script: str) -> str:
        """Return the text that runs a script on a node that may run the plan's jobs, now or later.

        It waits in the queue; the script's outputs and exit code are its own.
        """
        ...

"""The interface of schedulers: each action is a pure pair, a script and a parser of its answer.

A scheduler never runs anything: `dlctl.lifecycle` runs the scripts through a transport. So all of
it can be tested with strings, and any transport works with any scheduler.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from dlctl.contract import Plan
from dlctl.contract.programs import slurm_words
from dlctl.scheduler.offer import Answers, Offer


class JobState(enum.Enum):
    """The state of a job, the same for all schedulers; `Job.word` has the scheduler's own word."""

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
    """By a person."""
    DROPPED = slurm_words.DROPPED
    """By Slurm itself, as after its controller has lost its state."""
    UNKNOWN = "UNKNOWN"
    """A word that this version does not know; never taken for an end."""

    @property
    def final(self) -> bool:
        """Return whether the job is over for good."""
        return self in _FINAL


_FINAL = {
    JobState.COMPLETED, JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY,
    JobState.NODE_FAIL, JobState.PREEMPTED, JobState.CANCELLED, JobState.DROPPED,
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One job as the scheduler sees it."""

    job_id: str
    name: str
    """The token: `dlctl.contract.token(training_id, attempt)`."""
    state: JobState
    word: str
    """The scheduler's own word for the state, e.g. `OUT_OF_ME+`."""
    reason: str = ""
    """Why the job waits or how it ended, in the scheduler's words."""
    nodes: str = ""
    exit_code: str = ""
    """`exit:signal`, if known."""
    comment: str = ""
    starts_at: float = 0.0
    """When the scheduler expects it to start, or it did (Unix seconds); 0 if it does not tell."""
    partition: str = ""


class Usage(NamedTuple):
    """The accounting of one job; None is unknown. Times are Unix seconds."""

    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    cpu_s: float | None = None
    """CPU time of all its processes."""
    memory_bytes: int | None = None
    """The largest resident memory of any of its tasks."""


class Scheduler(Protocol):
    """One kind of batch scheduler, whose class derives from this. All methods are pure.

    Scripts are POSIX shell for a transport's `run`. The submit script runs in the job directory.
    What a scheduler may lack has a default.
    """

    kind: str
    allocates: ClassVar[bool]
    """Whether it gives out nodes, by partitions and options of its own; else it is one machine."""
    not_now: ClassVar[str] = ""
    """An extended regular expression of refusals after which the same may be asked again: the user
    has as many jobs as a limit allows, or the controller can't be reached. Nothing was queued."""
    answer_lost: ClassVar[str] = ""
    """One of what is printed when a job may have been queued all the same."""

    def lack_here(self) -> str:
        """Return why this machine can't run jobs, if it is the site itself; empty: it can."""
        return ""

    @staticmethod
    def header(plan: Plan) -> list[str]:
        """Return the lines of a batch script in which the scheduler reads its options.

        Raises:
            PlanError: an option can't be written down.
        """
        return []

    def questions(self) -> tuple[str, dict[str, str]]:
        """Return what to ask a login node: shell that comes first, and question → command.

        Both may use the functions of `templates/sites/discover.sh`.
        """
        return "", {}

    def read_offer(self, answers: Answers) -> Offer | None:
        """Return what the answers say that it offers; None if it is not there."""
        return Offer()

    def prologue(self) -> str:
        """Return what the scripts of one call have in common, so that they do it once."""
        return ""

    def chaining_script(self, partition: str | None, account: str | None) -> str:
        """Return what the doctor's job runs to tell whether it can start the next attempt.

        It calls `tell submit COMMAND` to try a submission, and `tell control COMMAND` to try
        whether the job could ask for another run of itself.
        """
        return ""

    def submit_script(self, plan: Plan, attempt: int | str) -> str:
        """Return the script that submits `job.sbatch <attempt>` and prints the answer.

        Args:
            attempt: a number, or `contract.NEXT` for one that is put in its place later.
        """

    def workers_script(self, plan: Plan, script: str, output: str) -> str:
        """Return the script that submits `$count` workers of a search as the group `$group`.

        It prints one id: a group is one array, or else one id a line. The token of a group is that
        of an attempt with its name; a worker's number, from 0, comes behind its group's name.

        Args:
            plan: Of one worker; only its resources count.
            script: The batch script, in the job directory; its argument is the group's name.
            output: The folder in the job directory below which the group's folder lies.
        """

    def workers_alive_script(self, plan: Plan) -> str:
        """Return the script that prints a line for each of a search's workers in the queue.

        The line is `<group> <job id> <state>`, the state being Slurm's word. Workers that wait, run
        or are ending count.
        """

    def parse_submit(self, exit_code: int, stdout: str, stderr: str) -> str:
        """Return the job id.

        Raises:
            SubmitRejected: the scheduler refused; nothing was submitted.
            SchedulerUnavailable: its controller can't be reached; nothing was submitted.
            SubmitUnknown: the answer was lost; the job may exist, or appear later.
        """

    def queue_script(self, root: str) -> str:
        """Return the script that lists those of this user's jobs that the scheduler remembers."""

    def parse_queue(self, exit_code: int, stdout: str, stderr: str) -> list[Job]:
        """Return the jobs.

        Raises:
            SchedulerUnavailable: the controller does not answer (the state is stale, not FAILED).
        """

    def history_script(self, job_ids: list[str]) -> str | None:
        """Return the script that asks the accounting about these jobs; None without accounting."""
        return None

    def parse_history(self, exit_code: int, stdout: str, stderr: str) -> list[Job]:
        """Return what the accounting knows: nothing if it is absent or down."""
        return []

    def usage_script(self, job_ids: list[str]) -> str | None:
        """Return the script that asks what jobs have used; None without accounting."""
        return None

    def parse_usage(self, stdout: str) -> dict[str, Usage]:
        """Return what is known, by job id: nothing if the accounting does not answer."""
        return {}

    def start_script(self, plan: Plan) -> str | None:
        """Return the script that asks when the plan's job would start; None: nobody plans that."""
        return None

    def parse_start(self, stdout: str, stderr: str) -> tuple[float | None, str]:
        """Return in how many seconds the job would start, or why that is not known."""
        return None, ""

    def cancel_script(self, job_id: str, root: str) -> str:
        """Return the script that ends a job; it is no failure if the job is already gone."""

    def halt_script(self, job_id: str, root: str) -> str | None:
        """Return the script that signals a job to save and end; None if there is no such way.

        It is for a job directory that can't be written; `parse_cancel` reads its answer.
        """
        return None

    def parse_cancel(self, exit_code: int, stdout: str, stderr: str) -> None:
        """Return normally if the job is ending or gone.

        Raises:
            SchedulerUnavailable: the request may not have arrived; cancelling again is safe.
        """

    def node_script(self, plan: Plan, script: str) -> str:
        """Return the script that runs another script on a node for the plan's jobs, now or later.

        It waits in the queue, and passes on the other script's output and exit code. Without nodes
        of others it is that script.
        """
        return script

"""Who starts the next attempt: one class for each way.

To add a way, write its class, add its name to `StarterKind` and its object to `ALL`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dlctl import contract
from dlctl.contract import Action, Plan, StarterKind, VerdictKind
from dlctl.contract.programs.slurm_words import ANSWER_LOST
from learner.errors import UserFault
from learner.job.batch import batch_system, own_job_id
from learner.job.context import CHECKED_VARIABLE, ENDS_AT_VARIABLE
from learner.job.directives import is_there

MAY_LACK_NODES = {VerdictKind.NODE_LOST, VerdictKind.SCHEDULER, VerdictKind.UNKNOWN}
"""Slurm may have taken a node from the job before any other sign of its loss."""
_LEAST_S = 60.0
"""With less time than this beside the margin for saving, a new job comes further."""
_OTHER_NODES = {VerdictKind.NODE_LOST, VerdictKind.GPU_ERROR}
_NOT_HERE = {
    VerdictKind.TIME_LIMIT, VerdictKind.PREEMPTED, VerdictKind.SCHEDULER, VerdictKind.CANCELLED,
}  # fmt: skip
_SPARE_S = 5.0
_TIMEOUT_S = 120.0
"""As `dlctl submit` waits."""
_OURS = ("DLCTL_", "OMP_", "PYTHON")
"""Variables of this job that the next one sets by itself."""


class CanNotStart(Exception):
    """The next attempt could not be started this way; the message gives the reason."""


@dataclass(frozen=True)
class Situation:
    """An attempt that has ended, and what is to follow."""

    job_dir: Path
    attempt: int
    """The attempt that has ended."""
    plan: Plan
    """The next attempt's."""
    kind: VerdictKind
    """Why the attempt has ended."""
    action: Action
    job_id: str
    """The job that asks."""
    ends_at: float | None
    """When the job ends, in Unix seconds; None: no limit is known."""
    in_job: bool = True
    """Whether the caller is the job's supervisor, on the job's first node."""
    is_fresh: bool = False
    """Whether the job has been given its nodes just now: it was requeued."""
    bad_hosts: Sequence[str] = ()
    """The job's nodes that the attempt must avoid."""
    has_fewer: bool = False
    """Whether the plan is for the nodes that are left, after the job has lost some."""
    nodes_are_fine: bool = False
    """Whether the attempt had trained, and only a process has died: no node needs a check."""

    @property
    def left_s(self) -> float | None:
        """Return how long the attempt may run if it starts as soon as it may."""
        begins_at = max(time.time(), self.action.not_before)
        return None if self.ends_at is None else self.ends_at - begins_at


class Starter:
    """One way to start the next attempt."""

    kind: ClassVar[StarterKind]
    runs_here = False
    """Whether the attempt runs in the process that starts it, which is then replaced."""
    begins = False
    """Whether `start` is called with the attempt's files in place; else they are written later, by
    the process that goes on."""

    def objection(self, situation: Situation) -> str:  # noqa: ARG002
        """Return why this way is not open, in a few words; empty if it is."""
        return ""

    def start(self, situation: Situation) -> str:
        """Start the attempt; return the id of its job, or, if it does not begin now, a sentence.

        Raises:
            CanNotStart: nothing was started.
        """
        raise NotImplementedError


class InAllocation(Starter):
    """Replaces the supervisor by that of the next attempt."""

    kind = StarterKind.IN_ALLOCATION
    runs_here = True
    begins = True

    def objection(self, situation: Situation) -> str:
        """Return why the job's nodes can't be used again."""
        action, plan = situation.action, situation.plan
        if not situation.in_job:
            return "the job has ended"
        stays = situation.is_fresh or situation.has_fewer
        if situation.kind in _NOT_HERE and not stays:
            return "the scheduler ends the job"
        avoids = situation.kind in _OTHER_NODES or situation.bad_hosts
        if avoids and not stays or situation.is_fresh and _has_bad_node(situation):
            return "a node is to be avoided"
        if action.memory_factor > 1:
            return "the job has too little memory"
        least_s = plan.resources.halt_margin_s + _LEAST_S
        if situation.left_s is not None and situation.left_s < least_s and not situation.is_fresh:
            return "the job has too little time left"
        return ""

    def start(self, situation: Situation) -> str:
        """Return this job's id; `run` then starts the attempt."""
        return situation.job_id

    @staticmethod
    def run(situation: Situation) -> None:
        """Replace this process by the supervisor of the next attempt. Does not return.

        Signals are blocked until it can handle them, so that none gets lost or kills it.
        """
        number = situation.attempt + 1
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP])
        log = situation.job_dir / contract.job_output(number)
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        for stream in (1, 2):
            os.dup2(output, stream)
        if situation.left_s is not None:
            left_s, time_s = situation.left_s, situation.plan.resources.time_s
            if situation.is_fresh and time_s is not None:  # the job may have more than is left
                left_s = min(left_s, time_s)
            os.environ[ENDS_AT_VARIABLE] = str(int(time.time() + left_s))
        os.environ.pop(CHECKED_VARIABLE, None)
        if situation.nodes_are_fine:
            os.environ[CHECKED_VARIABLE] = str(situation.attempt)
        program = ["-u", "-m", "learner.supervisor", str(situation.job_dir), str(number)]
        os.execv(sys.executable, [sys.executable, *program])  # noqa: S606


class Job(Starter):
    """Runs the submit command that dlctl has left in the job directory."""

    kind = StarterKind.JOB
    begins = True

    def objection(self, situation: Situation) -> str:
        """Return why the node can't submit, or not in time."""
        begins_at, ends_at = situation.action.not_before, situation.ends_at
        waits = not batch_system(situation.plan).allocates and begins_at > time.time()
        if waits and ends_at is not None and begins_at > ends_at - _SPARE_S:
            return "the job ends before the attempt may begin"
        if waits and not situation.in_job and begins_at > time.time() + _SPARE_S:
            return "nobody waits here until the attempt may begin"
        if not is_there(situation.job_dir / contract.SUBMIT_NEXT):
            return f"there is no {contract.SUBMIT_NEXT} in the job directory"
        return ""

    def start(self, situation: Situation) -> str:
        """Submit the attempt, and keep the scheduler's answer as `dlctl resume` does."""
        number = situation.attempt + 1
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
        try:
            script = (situation.job_dir / contract.SUBMIT_NEXT).read_text()
            text = batch_system(situation.plan).submission(script)
            done = subprocess.run(
                ["/bin/sh", "-c", text.replace(contract.NEXT, str(number))],
                cwd=situation.job_dir, env=kept, stdin=subprocess.DEVNULL,
                capture_output=True, timeout=_TIMEOUT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            # The job may exist: the login side looks for it by name, and never submits it again.
            return ""
        except OSError as error:
            raise CanNotStart(f"the submit command can't be run: {error}") from error
        said = done.stderr.decode(errors="replace").strip()
        words = done.stdout.decode(errors="replace").split()
        killed = done.returncode < 0 or done.returncode in range(128, 255)
        if done.returncode and not killed and not ANSWER_LOST.search(said):
            said = said or "it printed nothing"
            raise CanNotStart(f"the submission failed with exit code {done.returncode}: {said}")
        head = f"{done.returncode}\n{len(done.stdout)}\n".encode()
        answer = situation.job_dir / contract.submit_answer(number)
        with contextlib.suppress(OSError):  # the login side finds the job by its name, too
            contract.write_whole(
                answer, (head + done.stdout + done.stderr).decode(errors="replace")
            )
        return words[-1].split(";")[0] if words and not done.returncode else ""


class Requeue(Starter):
    """Puts this job back into the queue; in its next run it goes on with the next attempt."""

    kind = StarterKind.REQUEUE

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


class Client(Starter):
    """Leaves the attempt to the next dlctl command that looks at the training."""

    kind = StarterKind.CLIENT

    def start(self, situation: Situation) -> str:  # noqa: ARG002
        """Do nothing: the verdict's action is all that `dlctl.lifecycle.watch` needs."""
        return "The next dlctl command that looks at the training starts it."


ALL: dict[str, Starter] = {
    str(starter.kind): starter for starter in (InAllocation(), Job(), Requeue(), Client())
}


def candidates(situation: Situation) -> list[Starter]:
    """Return who can start the next attempt, the first choice first; the client always can."""
    if not situation.in_job:  # a login node, which may submit whatever the nodes may
        return [each for each in (ALL["job"], ALL["client"]) if not each.objection(situation)]
    allowed = list(situation.plan.lifecycle.starters if situation.plan.lifecycle else [])
    if situation.is_fresh:  # the job was given its nodes for this
        allowed.insert(0, str(InAllocation.kind))
    known = [ALL[name] for name in allowed if name in ALL]
    return [*(each for each in known if not each.objection(situation)), ALL["client"]]


def _has_bad_node(situation: Situation) -> bool:
    """Return whether a job that Slurm has just started got a node with a fault again."""
    is_to_avoid = situation.bad_hosts or situation.kind is VerdictKind.GPU_ERROR
    if not is_to_avoid or not (system := batch_system(situation.plan)).allocates:
        return False
    try:
        hosts = system.hosts()
    except UserFault:
        return False  # its preflight finds the fault again
    return not set(hosts).isdisjoint(situation.action.exclude)

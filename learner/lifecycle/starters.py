"""The ways to start the next attempt: which of them are open, and how each is done.

To add one, add its name to `StarterKind`, an objection to `_OBJECTIONS`, and what it does to
`learner.lifecycle.manager`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlctl import contract
from dlctl.contract import Action, Plan, StarterKind, VerdictKind
from dlctl.contract.programs.slurm_words import ANSWER_LOST
from learner.errors import UserFault
from learner.job.batch import batch_system, own_job_id
from learner.job.context import CHECKED_VARIABLE, ENDS_AT_VARIABLE
from learner.job.directives import is_gone, is_there

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
class Following:
    """The attempt that is to follow one that has ended."""

    job_dir: Path
    ended: int
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
    is_in_queue: bool = False
    """Whether the scheduler has put the job back into its queue, where somebody may hold it."""
    starters: Sequence[StarterKind] = ()
    """Who can start it, the first choice first."""

    @property
    def number(self) -> int:
        """Return the number of the next attempt."""
        return self.ended + 1

    @property
    def left_s(self) -> float | None:
        """Return how long the attempt may run if it starts as soon as it may."""
        begins_at = max(time.time(), self.action.not_before)
        return None if self.ends_at is None else self.ends_at - begins_at


def candidates(following: Following) -> list[StarterKind]:
    """Return who can start the next attempt, the first choice first; the client always can."""
    plan, kinds = following.plan, StarterKind
    allowed = [kinds(name) for name in (plan.lifecycle.starters if plan.lifecycle else [])]
    if following.is_in_queue:  # a job beside it would get around a hold, and train twice
        return [kinds.REQUEUE, kinds.CLIENT]
    if not following.in_job:  # a login node, which may submit whatever the nodes may
        allowed = [kinds.JOB]
    elif following.is_fresh:  # the job was given its nodes for this
        allowed.insert(0, kinds.IN_ALLOCATION)
    ways = [each for each in allowed if each in _OBJECTIONS and not _OBJECTIONS[each](following)]
    return [*ways, kinds.CLIENT]


def _against_this_allocation(following: Following) -> str:
    """Return why the job's nodes can't be used again; empty if they can."""
    stays = following.is_fresh or following.has_fewer
    if not following.in_job:
        return "the job has ended"
    if gone := _runtime_is_gone(following):
        return gone
    if following.kind in _NOT_HERE and not stays:
        return "the scheduler ends the job"
    avoids = following.kind in _OTHER_NODES or following.bad_hosts
    if avoids and not stays or following.is_fresh and _has_bad_node(following):
        return "a node is to be avoided"
    if following.action.memory_factor > 1:
        return "the job has too little memory"
    least_s = following.plan.resources.halt_margin_s + _LEAST_S
    if following.left_s is not None and following.left_s < least_s and not following.is_fresh:
        return "the job has too little time left"
    return ""


def _against_a_new_job(following: Following) -> str:
    """Return why no job can be submitted from here, or not in time; empty if one can."""
    begins_at, ends_at = following.action.not_before, following.ends_at
    waits = not batch_system(following.plan).allocates and begins_at > time.time()
    if waits and ends_at is not None and begins_at > ends_at - _SPARE_S:
        return "the job ends before the attempt may begin"
    if waits and not following.in_job and begins_at > time.time() + _SPARE_S:
        return "nobody waits here until the attempt may begin"
    if gone := _runtime_is_gone(following):
        return gone
    for name in (contract.SUBMIT_NEXT, contract.script_file(following.ended)):
        if not is_there(following.job_dir / name):
            return f"there is no {name} in the job directory"
    return ""


def _runtime_is_gone(following: Following) -> str:
    """Return that another attempt would find no program of dlctl; the login side sends it again."""
    runtime = Path(following.plan.runtime_dir)
    gone = is_gone(runtime / "learner" / "supervisor" / "__main__.py")
    return f"the runtime {runtime} is gone" if gone else ""


def _against_requeue(following: Following) -> str:
    """Return why this job can't run the attempt once it is requeued; empty if it can."""
    if not following.in_job or not own_job_id():
        return "the job has ended"
    if following.action.memory_factor > 1:
        return "the job has too little memory"
    if following.bad_hosts or following.kind is VerdictKind.GPU_ERROR:
        return "the job may get the bad node again"
    return ""


_OBJECTIONS: dict[StarterKind, Callable[[Following], str]] = {
    StarterKind.IN_ALLOCATION: _against_this_allocation,
    StarterKind.JOB: _against_a_new_job,
    StarterKind.REQUEUE: _against_requeue,
}


def run_here(following: Following) -> None:
    """Replace this process by the supervisor of the next attempt. Does not return.

    Signals are blocked until it can handle them, so that none gets lost or kills it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP])
    log = following.job_dir / contract.job_output(following.number)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for stream in (1, 2):
        os.dup2(output, stream)
    if following.left_s is not None:
        left_s, time_s = following.left_s, following.plan.resources.time_s
        if following.is_fresh and time_s is not None:  # the job may have more than is left
            left_s = min(left_s, time_s)
        os.environ[ENDS_AT_VARIABLE] = str(int(time.time() + left_s))
    os.environ.pop(CHECKED_VARIABLE, None)
    if following.nodes_are_fine:
        os.environ[CHECKED_VARIABLE] = str(following.ended)
    arguments = [str(following.job_dir), str(following.number)]
    argv = [sys.executable, "-u", "-m", "learner.supervisor", *arguments]
    os.execv(sys.executable, argv)  # noqa: S606


def submit(following: Following) -> str:
    """Submit a job by the command that dlctl has left; return its id, "" if that is not known.

    Keeps the scheduler's answer as `dlctl resume` does.

    Raises:
        CanNotStart: nothing was submitted.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
    try:
        script = (following.job_dir / contract.SUBMIT_NEXT).read_text()
        text = batch_system(following.plan).submission(script)
        done = subprocess.run(
            ["/bin/sh", "-c", text.replace(contract.NEXT, str(following.number))],
            cwd=following.job_dir, env=kept, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        # The job may exist: the login side looks for it by name, and never submits it again.
        return ""
    except OSError as error:
        raise CanNotStart(f"the submit command can't be run: {error}") from error
    errors = done.stderr.decode(errors="replace").strip()
    words = done.stdout.decode(errors="replace").split()
    killed = done.returncode < 0 or done.returncode in range(128, 255)
    if done.returncode and not killed and not ANSWER_LOST.search(errors):
        errors = errors or "it printed nothing"
        raise CanNotStart(f"the submission failed with exit code {done.returncode}: {errors}")
    head = f"{done.returncode}\n{len(done.stdout)}\n".encode()
    answer = following.job_dir / contract.submit_answer(following.number)
    with contextlib.suppress(OSError):  # the login side finds the job by its name, too
        contract.write_whole(answer, (head + done.stdout + done.stderr).decode(errors="replace"))
    return words[-1].split(";")[0] if words and not done.returncode else ""


def _has_bad_node(following: Following) -> bool:
    """Return whether a job that Slurm has just started got a node with a fault again."""
    is_to_avoid = following.bad_hosts or following.kind is VerdictKind.GPU_ERROR
    if not is_to_avoid or not (system := batch_system(following.plan)).allocates:
        return False
    try:
        hosts = system.hosts()
    except UserFault:
        return False  # its preflight finds the fault again
    return not set(hosts).isdisjoint(following.action.exclude)

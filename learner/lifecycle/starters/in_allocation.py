"""Start the next attempt on the nodes that the job has: no queue, no new job."""

from __future__ import annotations

import os
import signal
import sys
import time

from dlctl import contract
from dlctl.contract import StarterKind, VerdictKind
from learner.errors import UserFault
from learner.job.batch import batch_system
from learner.job.context import CHECKED_VARIABLE, ENDS_AT_VARIABLE
from learner.lifecycle.starters.base import Situation

_LEAST_S = 60.0
"""With less time than this beside the margin for saving, a new job comes further."""
_OTHER_NODES = {VerdictKind.NODE_LOST, VerdictKind.GPU_ERROR}
MAY_LACK_NODES = {VerdictKind.NODE_LOST, VerdictKind.SCHEDULER, VerdictKind.UNKNOWN}
"""Slurm may have taken a node from the job before any other sign of its loss."""
_NOT_HERE = {
    VerdictKind.TIME_LIMIT, VerdictKind.PREEMPTED, VerdictKind.SCHEDULER, VerdictKind.CANCELLED,
}  # fmt: skip


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


class InAllocation:
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

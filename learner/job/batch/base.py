"""The questions of a job's programs to the system that runs it."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dlctl.contract import Plan, VerdictKind

UNEXPLAINED = "the scheduler ended the job (time limit, preemption or scancel)"

REQUEUED = "REQUEUED"
"""The word for a job that the batch system has put back into its queue while it ran."""


class Silent(Exception):
    """The batch system does not answer; the message says how."""


@dataclass(frozen=True)
class Ending:
    """The batch system's account of a job that it is ending."""

    state: str
    reason: str
    kind: VerdictKind
    sentence: str
    left_s: float | None = None
    """How long the job may still run; None: no limit is known."""


class BatchSystem:
    """A system of which a job can ask nothing: dlctl's own queue on one machine, or a shell.

    The class of a real one answers where it can.

    Attributes:
        kind: Its name in a site's file and in the plan.
        job_variable: The environment variable in which a job finds its id.
        node_variable: That in which a process finds the system's name for its node.
        allocates: Whether it gives out nodes: a job then has the memory that it has asked for, can
            avoid a node, and is kept by the system until it may begin.
    """

    kind: ClassVar[str] = "local"
    job_variable: ClassVar[str] = "DLCTL_JOB_ID"
    node_variable: ClassVar[str] = ""
    allocates: ClassVar[bool] = False

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def hosts(self) -> list[str]:
        """Return the host of each node of the plan; the first is this one.

        Raises:
            SiteFault: they are not known, or are fewer than the plan has.
        """
        return [socket.gethostname()] * self.plan.resources.nodes

    def left_hosts(self) -> list[str] | None:
        """Return the hosts that the job still has; None if they are not known."""
        return None

    def dead_hosts(self, hosts: Sequence[str]) -> list[str]:  # noqa: ARG002
        """Return those of the hosts that the system takes for dead now."""
        return []

    def is_elsewhere(self) -> bool:
        """Return whether this job was given up, or runs on another first node.

        A node that was cut from the network goes on computing, while the system runs the job again.

        Raises:
            Silent: the system does not answer.
        """
        return False

    def ended_before(self, job_id: str) -> str:  # noqa: ARG002
        """Return the word for how a job's run before the present one ended; empty if unknown.

        The words are those of Slurm: NODE_FAIL, TIMEOUT, PREEMPTED, OUT_OF_MEMORY, CANCELLED.
        """
        return ""

    def ends_at(self) -> float | None:
        """Return when the job has to end, in Unix seconds; None: no limit is known."""
        return None

    def ending(self) -> Ending | None:
        """Return what the system says of this job, which has got a signal; None if nothing."""
        return None

    def cancel(self) -> None:
        """End this job, as far as that can be asked for."""

    def requeue(self) -> str:
        """Have this job run again, which ends it; return why that can't be done, or nothing."""
        return "this queue runs no job again"

    def submission(self, script: str) -> str:
        """Return the shell script that submits a job, as it can run in a job that is ending."""
        return script

    def script_of(self, script: str, plan: Plan, wait_s: float) -> str:  # noqa: ARG002
        """Return the batch script of an attempt, made from that of the attempt before.

        Args:
            wait_s: after how many seconds it may begin.
        """
        return script

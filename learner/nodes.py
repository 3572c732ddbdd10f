"""The nodes of a job in the plan's order, and which of them Slurm has taken away from it.

A job with --no-kill goes on when a node is lost; squeue's list of its nodes is then shorter (seen
with Slurm 22.05, for a node that lost its power and for one that lost its network).
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable

from dlctl.contract import Plan
from learner.faults import UserFault
from learner.launch import beside

HOSTS_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 20.0
ASK_EVERY_S = 5.0
_AWAY = re.compile(
    r"Unable to contact slurm controller|Socket timed out on send/recv operation", re.IGNORECASE
)
_BUSY = re.compile(r"Memory required by task is not available", re.IGNORECASE)
_FULL = re.compile(r"exceeded (job )?memory limit|oom.?kill|out of memory", re.IGNORECASE)
_LOST = re.compile(r"node fail(ure)?\b", re.IGNORECASE)


def job_hosts(plan: Plan) -> list[str]:
    """Return the host of each node; this one first, where the job script runs.

    Raises:
        UserFault: Slurm does not say, or gave fewer nodes than the plan has.
    """
    wanted = plan.resources.nodes
    if not plan.launch.argv:
        return [socket.gethostname()] * wanted
    names = os.environ.get("SLURM_JOB_NODELIST", "")
    argv = [beside(plan.launch.argv[0], "scontrol"), "show", "hostnames", names]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=HOSTS_TIMEOUT_S)
        hosts, said = done.stdout.split(), done.stderr.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        hosts, said = [], str(error)
    if len(hosts) < wanted:
        raise UserFault(
            f"The plan has {wanted} nodes, but the job's list {names!r} has {len(hosts)}. {said}",
            hint=f"Check that scontrol works on the nodes: dlctl sites check {plan.site}",
        )
    return hosts[:wanted]


def says_lost(words: list[str]) -> str:
    """Return the line in which srun says that its node is gone, or an empty text."""
    return next((line.strip() for line in words if _LOST.search(line)), "")


def says_away(words: list[str]) -> bool:
    """Return whether srun could not begin, because Slurm's controller did not answer."""
    return any(_AWAY.search(line) for line in words)


def says_busy(words: list[str]) -> bool:
    """Return whether srun could not begin, because Slurm has not cleaned up an ended step yet."""
    return any(_BUSY.search(line) for line in words)


def says_full(words: list[str]) -> str:
    """Return the line in which Slurm says that a step was killed for want of memory, or nothing."""
    return next((line.strip() for line in words if _FULL.search(line)), "")


def first_node_is_lost(plan: Plan) -> bool:
    """Return whether Slurm says that the job goes on without the node of its script."""
    job_id = os.environ.get("SLURM_JOB_ID", "")
    if not plan.launch.argv or not job_id:
        return False
    try:
        first = job_hosts(plan)[0]
        question = _question(plan, job_id)
        done = subprocess.run(question, capture_output=True, text=True, timeout=ASK_TIMEOUT_S)
    except (UserFault, OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and first not in done.stdout.split()


def _question(plan: Plan, job_id: str) -> list[str]:
    """Return the command that prints the hosts that the job has now."""
    squeue, scontrol = (beside(plan.launch.argv[0], name) for name in ("squeue", "scontrol"))
    script = 'list=$("$1" -h -j "$2" -o %N) && "$0" show hostnames "${list:?}"'
    return ["/bin/sh", "-c", script, scontrol, squeue, job_id]


class Nodes:
    """The job's hosts; asks Slurm in the background which of them it still has.

    Args:
        job_id: Slurm's; without one nobody is asked.
    """

    def __init__(
        self, plan: Plan, hosts: list[str], job_id: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.hosts = hosts
        self._clock = clock
        self._argv = _question(plan, job_id) if plan.launch.argv and job_id else []
        self._answer = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
        self._question: subprocess.Popen[bytes] | None = None
        self._asked_at = -ASK_EVERY_S
        self._gone: set[int] = set()

    def ask(self) -> None:
        """Ask now, unless that was done just before."""
        if not self._argv or self._question or self._clock() - self._asked_at < ASK_EVERY_S:
            return
        self._asked_at = self._clock()
        self._answer.seek(0)
        self._answer.truncate()
        try:
            self._question = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=self._answer,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except OSError:
            self._question = None

    def gone(self) -> set[int]:
        """Return the nodes that Slurm has said to have taken away."""
        if self._question is not None and self._question.poll() is not None:
            if self._question.returncode == 0:
                self._read()
            self._question = None
        elif self._question is not None and self._clock() - self._asked_at > ASK_TIMEOUT_S:
            self._question.kill()
        return self._gone

    def _read(self) -> None:
        self._answer.seek(0)
        left = self._answer.read().decode(errors="replace").split()
        # Without this host it is no answer about a job whose script runs here.
        if self.hosts[0] in left:
            self._gone |= {node for node, host in enumerate(self.hosts) if host not in left}

    def close(self) -> None:
        """Ask no more."""
        if self._question is not None:
            self._question.kill()
            self._question.wait()
            self._question = None
        self._answer.close()

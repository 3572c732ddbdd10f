"""Ask Slurm questions from inside a job, and recognize the error lines that srun prints."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from dlctl.contract import Plan
from dlctl.contract.programs.verdict_rules import OVER_MEMORY, UNREACHED
from learner.errors import SiteFault, UserFault

HOSTS_TIMEOUT_S = 60.0
ASK_TIMEOUT_S = 20.0
ACCOUNTING_TRIES = 10
_NOT_OVER = ("PENDING", "CONFIGURING", "RUNNING")
_AWAY = re.compile(
    r"Unable to contact slurm controller|Socket timed out on send/recv operation", re.IGNORECASE
)
_BUSY = re.compile(r"Memory required by task is not available", re.IGNORECASE)
_LOST = re.compile(r"node fail(ure)?\b", re.IGNORECASE)


class SlurmSilent(Exception):
    """Slurm's controller does not answer; the message says how."""


def job_hosts(plan: Plan) -> list[str]:
    """Return the host of each node; the first is this one, which runs the job script.

    Raises:
        SiteFault: Slurm does not list them, or gave the job fewer nodes than the plan has.
    """
    wanted = plan.resources.nodes
    if not plan.launch.argv:
        return [socket.gethostname()] * wanted
    hosts, error_text = _listed(plan)
    if len(hosts) < wanted:
        names = os.environ.get("SLURM_JOB_NODELIST", "")
        raise SiteFault(
            f"The plan has {wanted} nodes, but the job's list {names!r} has {len(hosts)}. "
            f"{error_text}",
            hint=f"Check that scontrol works on the nodes: dlctl sites check {plan.site}",
        )
    return hosts[:wanted]


def listed_hosts(plan: Plan) -> list[str]:
    """Return all nodes of the job as Slurm has listed them for it; none if it can't be asked."""
    return _listed(plan)[0]


def _listed(plan: Plan) -> tuple[list[str], str]:
    """Return the nodes of the job, and Slurm's error if it does not list them."""
    names = os.environ.get("SLURM_JOB_NODELIST", "")
    argv = [slurm_command(plan, "scontrol"), "show", "hostnames", names]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=HOSTS_TIMEOUT_S)
        return done.stdout.split(), done.stderr.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], str(error)


def node_name() -> str:
    """Return Slurm's name for this node, which may differ from the host's, or else the host's."""
    # A process that mpirun has started on another node may have inherited the first node's name.
    by_mpirun = any(name in os.environ for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK"))
    named = "" if by_mpirun else os.environ.get("SLURMD_NODENAME", "")
    return named or socket.gethostname()


def says_lost(words: list[str]) -> str:
    """Return the line in which srun reports that a node is gone, or an empty text."""
    lost = (line.strip() for line in words if _LOST.search(line) or UNREACHED.search(line))
    return next(lost, "")


def says_away(words: list[str]) -> bool:
    """Return whether srun could not begin because Slurm's controller did not answer."""
    return any(_AWAY.search(line) for line in words)


def says_busy(words: list[str]) -> bool:
    """Return whether srun could not begin because Slurm had not yet cleaned up an ended step."""
    return any(_BUSY.search(line) for line in words)


def says_full(words: list[str]) -> str:
    """Return the line in which Slurm reports that a step ran out of memory, or an empty text."""
    return next((line.strip() for line in words if OVER_MEMORY.search(line)), "")


def first_node_is_lost(plan: Plan) -> bool:
    """Return whether, by Slurm's answer, the job continues without its first node."""
    job_id = os.environ.get("SLURM_JOB_ID", "")
    if not plan.launch.argv or not job_id:
        return False
    try:
        first = job_hosts(plan)[0]
        question = hosts_question(plan, job_id)
        done = subprocess.run(question, capture_output=True, text=True, timeout=ASK_TIMEOUT_S)
    except (UserFault, OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and first not in done.stdout.split()


def down_hosts(plan: Plan, hosts: Sequence[str]) -> list[str]:
    """Return those of the hosts that Slurm takes for dead now; none if it can't be asked."""
    if not hosts or plan.batch.scheduler != "slurm":
        return []
    argv = [slurm_command(plan, "sinfo"), "-h", "-N", "-n", ",".join(hosts), "-o", "%N %T"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=ASK_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [line.split() for line in done.stdout.splitlines() if len(line.split()) == 2]
    down = {name for name, state in rows if state.startswith("down") or state.endswith("*")}
    return [host for host in hosts if host in down]


def is_elsewhere(plan: Plan) -> bool:
    """Return whether Slurm has given this job up, or runs it on another first node.

    A node that was cut from the network goes on computing, while Slurm runs its job again.

    Raises:
        SlurmSilent: Slurm's controller does not answer.
    """
    job_id = os.environ.get("SLURM_JOB_ID", "")
    here = os.environ.get("SLURMD_NODENAME", "")
    if plan.batch.scheduler != "slurm" or not job_id or not here:
        return False
    squeue = slurm_command(plan, "squeue")
    argv = [squeue, "-h", "-j", job_id, "-o", "%B"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=ASK_TIMEOUT_S)
    except OSError:  # a container without Slurm's commands
        return False
    except subprocess.TimeoutExpired as error:
        raise SlurmSilent(str(error)) from error
    if done.returncode and "Invalid job id" not in done.stderr:
        raise SlurmSilent(done.stderr.strip())
    return done.stdout.split() != [here]


def ended_before(plan: Plan, job_id: str) -> str:
    """Return Slurm's word for how a job's run before the present one ended; empty if unknown."""
    sacct = slurm_command(plan, "sacct")
    argv = [sacct, "-X", "-D", "-n", "-P", "-o", "State", "-j", job_id]
    for _ in range(ACCOUNTING_TRIES):
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=ASK_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        words = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
        # The accounting may not know yet that the job runs again, or that it has ended before.
        if ended := [word for word in words if word not in _NOT_OVER]:
            return ended[-1]
        if done.returncode:  # nodes that can't reach the accounting
            break
        time.sleep(1)
    return ""


def hosts_question(plan: Plan, job_id: str) -> list[str]:
    """Return the command that prints the job's current hosts."""
    squeue, scontrol = (slurm_command(plan, name) for name in ("squeue", "scontrol"))
    script = 'list=$("$1" -h -j "$2" -o %N) && "$0" show hostnames "${list:?}"'
    return ["/bin/sh", "-c", script, scontrol, squeue, job_id]


def slurm_command(plan: Plan, name: str) -> str:
    """Return a Slurm command's path in srun's folder, or its bare name if srun has no folder."""
    program = plan.launch.argv[0] if plan.launch.argv else ""
    there = Path(program).parent / name
    return str(there) if "/" in program and there.exists() else name

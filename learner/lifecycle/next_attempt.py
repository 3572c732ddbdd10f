"""The plan of the next attempt, and its files: plan, manifest, batch script and receipt, once.

If nodes are lost it may go on with the learners of those that are left: the checkpoint does not
depend on their number, and the batch of all of them together stays the same.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dlctl import contract
from dlctl.contract import BAD_NODE_S, Action, BadNode, Plan, Verdict, VerdictKind, to_json
from dlctl.contract.launchers import LAUNCHERS
from learner.errors import UserFault
from learner.job.batch import batch_system


def changed_plan(plan: Plan, action: Action) -> Plan:
    """Return the plan of the next attempt."""
    resources, batch = plan.resources, plan.batch
    if action.time_s is not None and resources.time_s is not None:
        time_s = min(resources.time_s, max(60, action.time_s))
        resources = replace(resources, time_s=time_s)
    if action.memory_factor > 1:
        resources = replace(
            resources,
            memory_bytes_per_learner=_times(
                resources.memory_bytes_per_learner, action.memory_factor
            ),
            memory_bytes_per_node=_times(resources.memory_bytes_per_node, action.memory_factor),
        )
    return replace(plan, resources=resources, batch=replace(batch, exclude=action.exclude))


def _times(memory_bytes: int | None, factor: float) -> int | None:
    return None if memory_bytes is None else round(memory_bytes * factor)


def begin(job_dir: Path, attempt: int, plan: Plan, action: Action) -> bool:
    """Begin the attempt after `attempt`; return False if somebody else has begun it.

    The process that creates the receipt exclusively has begun the attempt, and alone gives it its
    files, as `dlctl resume` does at the login node (templates/login/submit.sh.j2).

    Raises:
        OSError: the files can't be written.
    """
    number = attempt + 1
    here = job_dir / contract.attempt_dir(number)
    sent = here / f".sent.{uuid.uuid4().hex}"
    sent.mkdir(parents=True)
    try:
        # A purge may have removed them while the job waited; one that runs here needs neither.
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(job_dir / contract.manifest_file(attempt), sent / contract.MANIFEST)
        with contextlib.suppress(FileNotFoundError):
            script = (job_dir / contract.script_file(attempt)).read_text()
            wait_s = action.not_before - time.time()
            script = batch_system(plan).script_of(script, plan, wait_s)
            contract.write_whole(sent / contract.SCRIPT, script)
        contract.write_whole(sent / contract.PLAN, to_json(plan))
        token = f"{contract.token(plan.training_id, number)}\n"
        if not create_once(job_dir / contract.submit_begin(number), token):
            return False
        for path in sent.iterdir():
            path.replace(here / path.name)
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(sent)
    return True


def withdraw(job_dir: Path, attempt: int) -> None:
    """Undo `begin` for an attempt that certainly has no job, so that somebody else can begin it."""
    names = (contract.submit_answer(attempt), contract.plan_file(attempt),
             contract.manifest_file(attempt), contract.script_file(attempt),
             contract.submit_begin(attempt))  # fmt: skip
    for name in names:
        (job_dir / name).unlink(missing_ok=True)


def claim(job_dir: Path, attempt: int, job_id: str) -> bool:
    """Claim an attempt for a job that runs already; return False if it is another's."""
    return create_once(job_dir / contract.claim(attempt), f"{job_id}\n")


def create_once(path: Path, text: str) -> bool:
    """Create a file exclusively, with its text or not at all; return False if it exists."""
    try:
        file = path.open("x")
    except FileExistsError:
        return False
    try:
        with file:
            file.write(text)
    except OSError:  # the disk is full
        path.unlink()
        raise
    return True


KNOWN_S = 45.0
"""How long Slurm may take to notice that a node is gone, after it has ended the step there."""
_ASK_EVERY_S = 2.0


def on_what_is_left(plan: Plan, attempt: int, job_id: str, patience_s: float) -> Plan | None:
    """Return the plan for the nodes that Slurm has left to the job; None if they are too few.

    Args:
        patience_s: how long to wait for Slurm to take a node from the job.
    """
    least = plan.lifecycle.min_learners if plan.lifecycle else None
    if least is None or plan.launch.step_per_learner or not plan.launch.argv or not job_id:
        return None
    system, until = batch_system(plan), time.monotonic() + patience_s
    while True:
        try:
            hosts = system.hosts()
        except UserFault:
            return None
        left = hosts if (found := system.left_hosts()) is None else found
        fewer = reduced(plan, attempt, hosts, left)
        if fewer is not None or len(left) < len(hosts) or time.monotonic() > until:
            return fewer
        time.sleep(_ASK_EVERY_S)


def reduced(plan: Plan, attempt: int, hosts: Sequence[str], left: Sequence[str]) -> Plan | None:
    """Return a plan for fewer nodes; None if no node is lost, or too few learners are left. Pure.

    Args:
        attempt: the attempt that `plan` belongs to.
        hosts: of the nodes of `plan`, in order.
        left: those that the job still has.
    """
    lifecycle, launcher = plan.lifecycle, LAUNCHERS[plan.launch.kind]
    kept = [n for n, host in enumerate(hosts) if host in left]
    per_node = [plan.resources.learners_per_node[n] for n in kept]
    learners = sum(per_node)
    if lifecycle is None or lifecycle.min_learners is None or len(kept) in (0, len(hosts)):
        return None
    if learners < lifecycle.min_learners:
        return None
    learners_on = {hosts[n]: count for n, count in zip(kept, per_node)}
    argv = launcher.reshaped(plan.launch.argv, learners_on)
    whole = attempt if lifecycle.whole_attempt is None else lifecycle.whole_attempt
    return replace(
        plan,
        resources=replace(
            plan.resources, learners=learners, nodes=len(kept), learners_per_node=per_node,
            first_ranks=list(itertools.accumulate(per_node[:-1], initial=0)),
        ),
        launch=replace(plan.launch, argv=argv),
        lifecycle=replace(lifecycle, whole_attempt=whole),
    )  # fmt: skip


_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REMEMBERED = {VerdictKind.GPU_ERROR}
"""Faults that end a training and are remembered; the batch system remembers a lost node."""


def remember_bad_nodes(plan: Plan, verdict: Verdict) -> None:
    """Write a file for each node that a verdict blames for good.

    A file system that refuses costs only the memory.
    """
    hosts = list(verdict.bad_hosts)
    if not hosts and verdict.kind in _REMEMBERED and verdict.evidence:
        hosts = [verdict.evidence.host]
    if not batch_system(plan).allocates:
        return
    now, folder = time.time(), Path(plan.root) / contract.NODES
    for host in filter(_HOST.fullmatch, hosts):
        node = BadNode(
            host, str(verdict.kind), verdict.reason, plan.training_id, verdict.attempt, now,
            now + BAD_NODE_S,
        )  # fmt: skip
        with contextlib.suppress(OSError):
            contract.write_whole(folder / f"{host}.json", to_json(node))
